# In front of each test script.
set -u
disk=/dev/nvme0n1
die() { echo "FAIL: $*"; exit 1; }
must() { "$@" || die "status $? of: $*"; }

# until_ok SECONDS COMMAND...: repeats the command until it succeeds
until_ok() {
    tries=$(($1 * 10)); shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        usleep 100000
    done
}

# done_ios: reads and writes that the disk has completed
done_ios() { awk '{print $1 + $5}' /sys/block/nvme0n1/stat 2>/dev/null || echo 0; }

# more_ios N: the disk has completed more than N
more_ios() { [ "$(done_ios)" -gt "$1" ]; }

# only_bytes CHARACTER SKIP_MIB COUNT_MIB: that part of the disk, read anew, holds nothing else
only_bytes() {
    left=$(dd if=$disk bs=1M skip="$2" count="$3" iflag=direct 2>/dev/null | tr -d "$1" | wc -c)
    [ "$left" = 0 ] || die "$left bytes other than $1 in MiB $2 + $3"
}

# no_trouble: the kernel complained about nothing that matters here
no_trouble() {
    if dmesg | grep -E 'nvme.*(timeout|aborting|Abort|controller is down|I/O Error|frozen)|I/O error|EXT4-fs error|blocked for more|WARNING:|BUG:'; then
        die "the kernel log has complaints"
    fi
}
