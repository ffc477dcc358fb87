//! A raw disk image that both SeaBIOS and OVMF boot.
//!
//! GRUB's boot sector and core image lie in front of one FAT partition, which also holds
//! GRUB for UEFI at the removable-media path. Both read the same configuration, kernel and
//! initramfs from the partition through the firmware's own block driver.

use std::fs;
use std::io::{Seek, SeekFrom, Write as _};

use super::{Kernel, Rig};
use crate::fault::{Context, Result, ensure};
use crate::process::run_logged;
use crate::qemu::KERNEL_ARGUMENTS;

pub(super) const INPUTS: &str = concat!("bootdisk, 1\n", include_str!("bootdisk.rs"));

/// Kernel that the boot disk holds.
const KERNEL: Kernel = Kernel::V6_12;

/// Word on the kernel command line that only this disk's GRUB configuration has.
pub(crate) const BOOT_MARK: &str = "rig.from=bootdisk";

const SIZE_MIB: u64 = 96;
const SECTOR: usize = 512;
/// First sector of the partition (1 MiB).
const PARTITION_START: u32 = 2048;

pub(super) fn build(rig: &Rig) -> Result<()> {
    let work = rig.root("srv/boot");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir_all(&work)?;
    fs::copy(rig.vmlinuz(KERNEL), work.join("vmlinuz"))?;
    fs::copy(rig.initrd(KERNEL), work.join("initrd"))?;
    let config = format!(
        "serial --unit=0 --speed=115200\nterminal_output serial\nset timeout=0\n\
         menuentry disk {{\n\
         echo \"@rig grub loads the kernel on $grub_platform\"\n\
         linux /vmlinuz {KERNEL_ARGUMENTS} {BOOT_MARK}\ninitrd /initrd\n}}\n"
    );
    fs::write(work.join("grub.cfg"), config)?;
    // The UEFI image has no fixed disk name: it looks for the partition that holds the kernel.
    fs::write(work.join("early.cfg"), "search --no-floppy --file --set=root /vmlinuz\nset prefix=($root)/grub\n")?;
    let modules = "part_msdos fat linux normal configfile search search_fs_file echo serial terminal";
    let script = format!(
        "set -e; cd /srv/boot
        zstd -q -9 initrd -o initrd.zst && mv initrd.zst initrd
        grub-mkimage -O i386-pc -o core.img -c early.cfg -p /grub biosdisk {modules}
        grub-mkimage -O x86_64-efi -o bootx64.efi -c early.cfg -p /grub {modules}
        cp /usr/lib/grub/i386-pc/boot.img .
        truncate -s {partition}M fat.img
        mkfs.vfat -F 32 -n SHADOWBELL fat.img
        mmd -i fat.img ::/EFI ::/EFI/BOOT ::/grub
        mcopy -i fat.img vmlinuz initrd ::/
        mcopy -i fat.img grub.cfg ::/grub/
        mcopy -i fat.img bootx64.efi ::/EFI/BOOT/BOOTX64.EFI",
        partition = SIZE_MIB - 1,
    );
    let log = rig.log("bootdisk.log")?;
    run_logged(&mut rig.inside(["sh", "-c", &script]), &log, "boot disk")?;

    let core = fs::read(work.join("core.img"))?;
    let partition_start = PARTITION_START as usize * SECTOR;
    ensure!(core.len() + SECTOR <= partition_start, "GRUB's core image does not fit before the partition");
    let mut sector = fs::read(work.join("boot.img"))?;
    sector.resize(SECTOR, 0);
    sector[440..].copy_from_slice(&partition_table()?);
    let image = rig.boot_disk();
    let mut disk = fs::File::create(&image).context(image.display())?;
    disk.write_all(&sector)?;
    disk.write_all(&core)?;
    disk.seek(SeekFrom::Start(partition_start as u64))?;
    disk.write_all(&fs::read(work.join("fat.img"))?)?;
    fs::remove_dir_all(&work).context(work.display())
}

/// Bytes 440 to 511 of a master boot record: disk id, four entries (one used), signature.
fn partition_table() -> Result<[u8; 72]> {
    let sectors = u32::try_from((SIZE_MIB - 1) * 1024 * 1024 / SECTOR as u64).context("partition size")?;
    let mut table = [0; 72];
    table[..4].copy_from_slice(b"shbl");
    // Bootable; type EFh, which UEFI takes for a system partition; CHS fields are not used.
    table[6..14].copy_from_slice(&[0x80, 0xfe, 0xff, 0xff, 0xef, 0xfe, 0xff, 0xff]);
    table[14..18].copy_from_slice(&PARTITION_START.to_le_bytes());
    table[18..22].copy_from_slice(&sectors.to_le_bytes());
    table[70..].copy_from_slice(&[0x55, 0xaa]);
    Ok(table)
}
