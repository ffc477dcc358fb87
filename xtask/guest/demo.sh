# What a newcomer sees first: a stock kernel finds both disks and uses one for a file system.
disk_of() { for d in /sys/block/nvme0n*; do [ "$(cat $d/nsid)" = "$1" ] && echo "/dev/${d##*/}"; done; }
echo "  Linux $(uname -r) sees:"
nvme list | sed 's/^/    /' | cut -c1-140
image=$(disk_of 2)
mkfs.ext4 -q -F $image && mount -t ext4 $image /mnt || exit 1
dd if=/dev/urandom of=/mnt/data bs=1M count=16 2>/dev/null
(cd /mnt && sha256sum data > sum)
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
mount -t ext4 $image /mnt || exit 1
(cd /mnt && sha256sum -c sum > /dev/null) || exit 1
umount /mnt
echo "  ext4 on $image (the image): 16 MiB written, unmounted, mounted, verified"
