# Two controllers of one server, busy at the same time: each keeps its own data. They are told apart by their sizes.
disk_of() { for d in /sys/block/nvme*; do [ "$(cat $d/size)" = $(($1 * 2048)) ] && echo "/dev/${d##*/}"; done; }
n=0
for mib in 64 96; do
    n=$((n + 1))
    d=$(disk_of $mib)
    [ -n "$d" ] || die "no disk of $mib MiB"
    head -c 4194304 /dev/zero | tr '\000' $n > /tmp/data$n
    fio --name=io --filename=$d --offset=16M --size=16M --rw=randrw --bs=4k --ioengine=libaio --direct=1 --iodepth=8 \
        --verify=crc32c --output=/tmp/fio$n &
    eval fio$n=$!
    must dd if=/tmp/data$n of=$d bs=1M seek=3 oflag=direct conv=fsync 2>/dev/null
done
must wait $fio1
must wait $fio2
n=0
for mib in 64 96; do
    n=$((n + 1))
    must dd if=$(disk_of $mib) of=/tmp/back bs=1M skip=3 count=4 iflag=direct 2>/dev/null
    must cmp /tmp/data$n /tmp/back
done
no_trouble
