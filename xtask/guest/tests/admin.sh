# What nvme-cli shows, as JSON for the host to judge. Each command must succeed.
show() {
    name=$1; shift
    echo "@json $name"
    "$@" -o json || die "status $? of: $*"
    echo
    echo "@end"
}
show id-ctrl nvme id-ctrl /dev/nvme0
show id-ns nvme id-ns $disk
show list-ns nvme list-ns /dev/nvme0
show smart-before nvme smart-log /dev/nvme0
must dd if=$disk of=/dev/null bs=64k count=64 iflag=direct 2>/dev/null
must dd if=/dev/zero of=$disk bs=64k count=16 oflag=direct 2>/dev/null
show smart-after nvme smart-log /dev/nvme0
show error-log nvme error-log /dev/nvme0 -e 1
# With the command set named: else nvme-cli wants the registers, which this kernel keeps to itself.
show effects-log nvme effects-log /dev/nvme0 --csi=0
show fw-log nvme fw-log /dev/nvme0
for feature in 0x01 0x02 0x04 0x05 0x07 0x08 0x09 0x0a 0x0b; do
    # Error Recovery belongs to a namespace.
    [ $feature = 0x05 ] && namespace=1 || namespace=0
    nvme get-feature /dev/nvme0 --namespace-id=$namespace -f $feature > /tmp/out.txt 2>&1 || { cat /tmp/out.txt; die "get-feature $feature"; }
    cat /tmp/out.txt
done
must nvme flush $disk --namespace-id=1
# A wrong command gets an error status and leaves an entry in the error log, nothing worse.
nvme get-log /dev/nvme0 --log-id=0xbf --log-len=512 > /tmp/out.txt 2>&1 && die "log page BFh does not exist"
cat /tmp/out.txt
show smart-last nvme smart-log /dev/nvme0
no_trouble
