# First start: makes a file system, fills it, restarts the machine. Each later start verifies.
if mount -t ext4 $disk /mnt 2>/dev/null; then
    (cd /mnt && sha256sum -c sums > /dev/null) || die "files changed"
    echo "verified, boot $(cat /mnt/boots)"
    echo $(($(cat /mnt/boots) + 1)) > /mnt/boots
    must umount /mnt
    no_trouble
    exit 0
fi
must mkfs.ext4 -q -F $disk
must mount -t ext4 $disk /mnt
must cp -r /usr/sbin /usr/lib /mnt/
for i in 1 2 3 4 5 6 7 8; do
    must dd if=/dev/urandom of=/mnt/random$i bs=64k count=16 2>/dev/null
done
(cd /mnt && find sbin lib random* -type f -exec sha256sum {} + > sums) || die "sums"
echo 1 > /mnt/boots
rm /mnt/random8 && dd if=/dev/urandom of=/mnt/unlisted bs=1M count=4 2>/dev/null
sed -i /random8/d /mnt/sums
must umount /mnt
no_trouble
echo "written"
reboot -f
