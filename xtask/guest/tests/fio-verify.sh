# Random writes, read back and checked, at several block sizes, depths and job counts.
cat > /tmp/jobs.fio <<'J'
[global]
filename=/dev/nvme0n1
ioengine=libaio
direct=1
thread=1
verify=crc32c
verify_fatal=1
group_reporting=1
rw=randwrite

[small-1]
bs=512
size=512k
iodepth=1
[page-32]
stonewall
bs=4k
offset=16m
size=8m
iodepth=32
numjobs=2
offset_increment=16m
[odd-8]
stonewall
bs=68k
offset=64m
size=17m
iodepth=8
[large-4]
stonewall
bs=512k
offset=96m
size=32m
iodepth=4
numjobs=2
offset_increment=48m
[beyond-mdts-2]
stonewall
bs=2m
offset=192m
size=32m
iodepth=2
[mixed-16]
stonewall
rw=randrw
bsrange=512-128k
blockalign=512
offset=224m
size=8m
iodepth=16
numjobs=2
offset_increment=16m
J
must fio /tmp/jobs.fio --eta=never --output=/tmp/out.txt --output-format=terse --terse-version=3
grep '^3;' /tmp/out.txt | cut -d';' -f3,5 > /tmp/jobs.txt
cat /tmp/jobs.txt
[ "$(wc -l < /tmp/jobs.txt)" = 6 ] || die "fio did not report all of its jobs"
! grep -v ';0$' /tmp/jobs.txt || die "fio counted errors"
no_trouble
