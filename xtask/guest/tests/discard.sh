# Fills 64 MiB with Z, then takes parts away by four routes.
queue=/sys/block/nvme0n1/queue
echo "limits discard=$(cat $queue/discard_max_bytes) zeroes=$(cat $queue/write_zeroes_max_bytes)"
[ "$(cat $queue/discard_max_bytes)" -gt 0 ] || die "the disk takes no discard"
[ "$(cat $queue/write_zeroes_max_bytes)" -gt 0 ] || die "the disk takes no Write Zeroes"
head -c 1048576 /dev/zero | tr '\000' Z > /tmp/z
i=0
while [ $i -lt 64 ]; do
    must dd if=/tmp/z of=$disk bs=1M seek=$i oflag=direct 2>/dev/null
    i=$((i + 1))
done
only_bytes Z 0 64
M=1048576
# By its path: the shell would take busybox's, which cannot write zeroes.
must /usr/sbin/blkdiscard -o $((8 * M)) -l $((16 * M)) $disk
must /usr/sbin/blkdiscard -z -o $((32 * M)) -l $((8 * M)) $disk
# The same commands without the kernel's help: 4 MiB each.
must nvme dsm $disk --namespace-id=1 --ad --slbs=$((48 * M / 512)) --blocks=$((4 * M / 512))
must nvme write-zeroes $disk --namespace-id=1 --deac --start-block=$((56 * M / 512)) --block-count=$((M / 512 - 1))
must nvme flush $disk --namespace-id=1
only_bytes '\000' 8 16
only_bytes '\000' 32 8
only_bytes '\000' 48 4
only_bytes '\000' 56 1
only_bytes Z 0 8
only_bytes Z 24 8
only_bytes Z 40 8
only_bytes Z 52 4
only_bytes Z 57 7
no_trouble
