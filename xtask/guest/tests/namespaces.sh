# Two namespaces: sizes, and that each keeps its own data. The driver numbers its disks in
# the order in which it found them, so a disk is looked up by its namespace id.
disk_of() { for d in /sys/block/nvme0n*; do [ "$(cat $d/nsid)" = "$1" ] && echo "/dev/${d##*/}"; done; }
for n in 1 2; do
    d=$(disk_of $n)
    echo "namespace=$n sectors=$(cat /sys/block/${d#/dev/}/size)"
    head -c 4194304 /dev/zero | tr '\000' $n > /tmp/data$n
    must dd if=/tmp/data$n of=$d bs=1M seek=3 oflag=direct conv=fsync 2>/dev/null
done
for n in 1 2; do
    must dd if=$(disk_of $n) of=/tmp/back bs=1M skip=3 count=4 iflag=direct 2>/dev/null
    must cmp /tmp/data$n /tmp/back
done
no_trouble
