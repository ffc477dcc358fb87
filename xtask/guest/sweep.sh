# fio sweep for the doorbell figures. The host sets (in front of this script) jobs, depths,
# ios (for each job) and disk. Every fio job stops before and after its I/O and waits for a
# line from the host, which takes its exact counts meanwhile:
#   @point jobs=N depth=N   the next point
#   @before, @after         once for each job of the point
#   @result ...             what fio measured
cat > /tmp/mark <<'M'
#!/bin/sh
# One write and one read: lines of several jobs do not mix.
echo "@$1" > /dev/ttyS0
dd of=/dev/null bs=64 count=1 2>/dev/null < /dev/ttyS0
M
chmod +x /tmp/mark
echo none > /sys/block/${disk#/dev/}/queue/scheduler 2>/dev/null
for n in $jobs; do
    for depth in $depths; do
        echo "@point jobs=$n depth=$depth"
        fio --name=sweep --filename=$disk --ioengine=libaio --direct=1 --thread --group_reporting \
            --rw=randread --bs=4k --iodepth=$depth --numjobs=$n --number_ios=$ios --size=8g \
            --norandommap --randrepeat=0 --cpus_allowed=0-$((n - 1)) --cpus_allowed_policy=split \
            --exec_prerun="/tmp/mark before" --exec_postrun="/tmp/mark after" \
            --terse-version=3 --minimal > /tmp/out.txt 2>&1 || { cat /tmp/out.txt; exit 1; }
        # Fields of terse version 3: 5 error, 6 KiB read, 8 IOPS, 40 mean total latency (us).
        awk -F';' '/^3;/{printf "@result ios=%d iops=%d latency_us=%d errors=%d\n", $6 / 4, $8, $40, $5}' /tmp/out.txt
    done
done
