# In a guest that firmware booted from the disk: says where it came from, reads the whole disk.
echo "cmdline $(cat /proc/cmdline)"
echo "firmware=$([ -d /sys/firmware/efi ] && echo efi || echo pc)"
echo "disk sha256=$(sha256sum < $disk | cut -d' ' -f1)"
no_trouble
