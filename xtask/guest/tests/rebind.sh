# 20 times: takes the driver off the device under load, puts it back, checks that I/O works.
address=$(basename "$(readlink -f /sys/class/nvme/nvme0/device)")
driver=/sys/bus/pci/drivers/nvme
gone() { ! kill -0 "$1" 2>/dev/null; }
i=0
while [ $i -lt 20 ]; do
    fio --name=bg --filename=$disk --ioengine=libaio --direct=1 --thread --rw=randrw --bs=4k --iodepth=16 \
        --size=64m --norandommap --time_based --runtime=300 > /tmp/bg.txt 2>&1 &
    fio=$!
    until_ok 60 more_ios 200 || die "fio does not start in round $i"
    must sh -c "echo $address > $driver/unbind"
    # Its disk is gone: fio ends with an error, which is right.
    until_ok 60 gone $fio || die "fio hangs after unbind $i"
    [ ! -e $disk ] || die "the disk is still there after unbind $i"
    must sh -c "echo $address > $driver/bind"
    until_ok 60 test -b $disk || die "no disk after bind $i"
    must dd if=/dev/urandom of=/tmp/data bs=64k count=4 2>/dev/null
    must dd if=/tmp/data of=$disk bs=64k count=4 oflag=direct 2>/dev/null
    must dd if=$disk of=/tmp/back bs=64k count=4 iflag=direct 2>/dev/null
    must cmp /tmp/data /tmp/back
    i=$((i + 1))
done
echo "20 rounds"
if dmesg | grep -E 'nvme.*(timeout|aborting|controller is down)|blocked for more|WARNING:|BUG:'; then
    die "the kernel log has complaints"
fi
