# Runs one fio job on one disk after another, as the host says. The host sets (in front of this
# script) modules and kprobe. Lines from the host: PCI slot, jobs, depth, seconds; or "end".
# Every fio job stops before and after its I/O and waits for a line from the host, which takes
# its exact counts meanwhile:
#   @ready              the disks are there; the next line is awaited
#   @before, @after     once for each job
#   @result ...         what fio measured, interrupts and kprobe hits of this run
for module in $modules; do modprobe $module || exit 1; done
cat > /tmp/mark <<'M'
#!/bin/sh
# One write and one read: lines of several jobs do not mix.
echo "@$1" > /dev/ttyS0
dd of=/dev/null bs=64 count=1 2>/dev/null < /dev/ttyS0
M
chmod +x /tmp/mark

# Counts the guest's calls of one kernel function, for register writes that nobody else counts.
tracing=/sys/kernel/tracing
if [ -n "$kprobe" ]; then
    mount -t tracefs tracefs $tracing 2>/dev/null
    echo "p:rig/probe $kprobe" > $tracing/kprobe_events || exit 1
    echo 1 > $tracing/events/rig/probe/enable || exit 1
fi
hits() { awk '$1 == "probe" { print $2; found = 1 } END { if (!found) print 0 }' $tracing/kprobe_profile 2>/dev/null || echo 0; }

# Name of the disk of the function at PCI slot $1; an NVMe path (nvme0c0n1) stands for its disk.
disk_at() {
    pci=/sys/bus/pci/devices/0000:00:$1.0
    ls -d $pci/nvme/nvme*/nvme*n1 $pci/virtio*/block/* $pci/virtio*/host*/target*/*/block/* 2>/dev/null |
        sed -n '1{s,.*/,,;s,c[0-9]*n,n,;p;}'
}

# Interrupts of the function at PCI slot $1 so far, of all its vectors.
interrupts() {
    awk -v list="$(ls /sys/bus/pci/devices/0000:00:$1.0/msi_irqs | tr '\n' ' ')" '
        BEGIN { n = split(list, names, " "); for (i = 1; i <= n; i++) mine[names[i] ":"] = 1 }
        NR == 1 { cpus = NF }
        ($1 in mine) { for (i = 2; i <= cpus + 1; i++) sum += $i }
        END { printf "%d", sum }' /proc/interrupts
}

# The numbers of fio's JSON (one key a line) that the host wants; latency in ns.
results() {
    awk '
        { gsub(/[",]/, "") }
        $1 == "error" { error = $3 }
        $2 == ":" && $3 == "{" { if ($1 ~ /^(read|write|trim|sync)$/) side = $1; lat = ($1 == "lat_ns") }
        $1 == "total_ios" { ios[side] = $3 }
        $1 == "iops" { iops[side] = $3 }
        $1 == "mean" && lat { mean[side] = $3; lat = 0 }
        END {
            printf "error=%d", error
            for (i = split("read write trim", sides, " "); i > 0; i--) {
                s = sides[i]
                printf " %s_ios=%s %s_iops=%s %s_lat=%s", s, ios[s] + 0, s, iops[s] + 0, s, mean[s] + 0
            }
        }' /tmp/out.json
}

for slot in $slots; do
    tries=0
    while [ -z "$(disk_at $slot)" ]; do
        tries=$((tries + 1))
        [ $tries -gt 600 ] && { echo "no disk at PCI slot $slot after 60 s"; exit 1; }
        usleep 100000
    done
    echo none > /sys/block/$(disk_at $slot)/queue/scheduler 2>/dev/null
done
echo "@ready"
while read -r slot jobs depth seconds; do
    [ "$slot" = end ] && exit 0
    interrupts=$(interrupts $slot) hits=$(hits)
    DISK=/dev/$(disk_at $slot) JOBS=$jobs DEPTH=$depth CPUS=0-$((jobs - 1)) RUNTIME=$seconds \
        fio --output-format=json --output=/tmp/out.json /opt/compare.fio > /tmp/fio.txt 2>&1 ||
        { echo "fio failed on $(disk_at $slot)"; cat /tmp/fio.txt; grep '^fio:' /tmp/out.json; exit 1; }
    echo "@result $(results) interrupts=$(($(interrupts $slot) - interrupts)) hits=$(($(hits) - hits))"
done
echo "the host is gone"
exit 1
