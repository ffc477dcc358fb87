# Short random reads, one job, depths 1 and 32.
oacs=$(nvme id-ctrl $disk | awk '/^oacs/{print $3}')
echo "oacs=$oacs dbbuf=$(((oacs >> 8) & 1))"
for depth in 1 32; do
    must fio --name=read --filename=$disk --ioengine=libaio --direct=1 --thread --rw=randread --bs=4k \
        --norandommap --size=1g --iodepth=$depth --number_ios=4000 --terse-version=3 --minimal > /tmp/out.txt
    awk -F';' -v d=$depth '{print "depth=" d " ios=" $6 / 4 " errors=" $5; exit $5}' /tmp/out.txt || die "fio errors"
done
no_trouble
