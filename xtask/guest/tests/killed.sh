# First guest: writes, flushes, says so, and goes on writing until its power is cut.
# Second guest: everything that was flushed must be there.
if mount -t ext4 $disk /mnt 2>/dev/null; then
    (cd /mnt && sha256sum -c sums) || die "flushed files changed"
    must umount /mnt
    exit 0
fi
must mkfs.ext4 -q -F $disk
must mount -t ext4 $disk /mnt
for i in 1 2 3 4; do
    must dd if=/dev/urandom of=/mnt/kept$i bs=256k count=16 2>/dev/null
done
(cd /mnt && sha256sum kept* > sums) || die "sums"
sync
echo "flushed"
i=0
while :; do
    i=$((i + 1))
    dd if=/dev/urandom of=/mnt/later$((i % 8)) bs=64k count=$((i % 32 + 1)) 2>/dev/null
    [ $((i % 5)) != 0 ] || sync
    echo "later $i"
done
