# 20 controller resets while verified writes go on: no error, no stall.
fio --name=bg --filename=$disk --ioengine=libaio --direct=1 --thread --rw=randwrite --bs=4k --iodepth=16 \
    --size=64m --norandommap --randrepeat=0 --verify=crc32c --verify_backlog=256 --verify_fatal=1 \
    --time_based --runtime=300 --terse-version=3 --minimal > /tmp/out.txt 2>&1 &
fio=$!
until_ok 60 more_ios 500 || die "fio does not start"
i=0
while [ $i -lt 20 ]; do
    must nvme reset /dev/nvme0
    before=$(done_ios)
    until_ok 30 more_ios $((before + 200)) || die "I/O stands still after reset $i"
    kill -0 $fio 2>/dev/null || { cat /tmp/out.txt; die "fio ended during reset $i"; }
    i=$((i + 1))
done
kill -INT $fio
wait $fio
errors=$(awk -F';' '/^3;/{print $5}' /tmp/out.txt)
[ "$errors" = 0 ] || { cat /tmp/out.txt; die "fio counted errors"; }
echo "20 resets, $(done_ios) I/Os"
no_trouble
