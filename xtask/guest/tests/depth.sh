# Verified I/O with more requests than the queue may hold.
echo "requests=$(cat /sys/block/nvme0n1/queue/nr_requests) queues=$(ls /sys/block/nvme0n1/mq | wc -l)"
must fio --name=depth --filename=$disk --ioengine=libaio --direct=1 --thread --rw=randwrite --bs=4k \
    --iodepth=1100 --numjobs=2 --size=8m --offset_increment=8m --verify=crc32c --verify_fatal=1 \
    --group_reporting --terse-version=3 --minimal > /tmp/out.txt
awk -F';' '/^3;/{exit $5}' /tmp/out.txt || die "fio errors"
no_trouble
