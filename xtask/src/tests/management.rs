//! Resets, driver changes and what the admin commands show.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::bench::{Bench, LIMIT};
use crate::fault::{Context, Result, ensure};
use crate::qemu::Guest;

pub(super) fn twenty_resets_under_load(bench: &mut Bench) -> Result<()> {
    let image = bench.image("disk.img", 128)?;
    let mut served = bench.serve(&[&image], &[])?;
    bench.run(&served, include_str!("../../guest/tests/reset.sh"), Duration::from_secs(300))?;
    if let Some(stats) = served.stats()? {
        let resets = stats.device.resets;
        ensure!(resets >= 20, "the device counts {resets} resets");
        let accepted = stats.device.doorbell_buffer_config;
        ensure!(accepted > 20, "7Ch was accepted {accepted} times: not once after each reset");
    }
    served.stop()?;
    Ok(())
}

pub(super) fn twenty_rebinds_under_load(bench: &mut Bench) -> Result<()> {
    let image = bench.image("disk.img", 128)?;
    let served = bench.serve(&[&image], &[])?;
    bench.run(&served, include_str!("../../guest/tests/rebind.sh"), Duration::from_secs(300))?;
    served.stop()?;
    Ok(())
}

pub(super) fn nvme_cli_sees_a_sane_controller(bench: &mut Bench) -> Result<()> {
    let image = bench.image("disk.img", 64)?;
    let options = ["--serial", "RIG-0042", "--model", "Shadowbell under test"];
    let ours_only = bench.is_ours();
    let served = bench.serve(&[Path::new(&image)], if ours_only { &options } else { &[] })?;
    let guest = bench.run(&served, include_str!("../../guest/tests/admin.sh"), LIMIT)?;

    let controller = json(&guest, "id-ctrl")?;
    let number = |key: &str| controller[key].as_u64().context(format!("id-ctrl has no {key}"));
    ensure!(number("nn")? >= 1, "no namespaces (NN is 0)");
    ensure!(number("ver")? >= 0x1_0400, "VER is {:#x}, older than 1.4", number("ver")?);
    ensure!(number("sqes")? == 0x66 && number("cqes")? == 0x44, "odd queue entry sizes");
    ensure!(number("oacs")? & 0x100 != 0, "OACS does not offer Doorbell Buffer Config");
    // MDTS is in units of 4 KiB pages here; 0 means no limit.
    let mdts = number("mdts")?;
    ensure!(mdts == 0 || mdts >= 7, "MDTS allows less than 512 KiB");
    if ours_only {
        let text = |key: &str| controller[key].as_str().unwrap_or_default().trim().to_owned();
        ensure!(text("sn") == options[1], "serial number is {:?}", text("sn"));
        ensure!(text("mn") == options[3], "model is {:?}", text("mn"));
        ensure!(!text("subnqn").is_empty(), "no subsystem NQN");
        // Dataset Management, Write Zeroes.
        ensure!(number("oncs")? & 0b1100 == 0b1100, "ONCS lacks deallocate or Write Zeroes");
    }
    let namespace = json(&guest, "id-ns")?;
    ensure!(namespace["nsze"] == (64 << 20) / 512, "NSZE is {}", namespace["nsze"]);

    let before = json(&guest, "smart-before")?;
    let after = json(&guest, "smart-after")?;
    let grew = |key: &str| after[key].as_f64() > before[key].as_f64();
    ensure!(grew("host_read_commands") && grew("host_write_commands"), "SMART does not count commands");
    ensure!(grew("data_units_read") && grew("data_units_written"), "SMART does not count data");
    ensure!(after["critical_warning"] == 0, "SMART warns: {}", after["critical_warning"]);
    let temperature = after["temperature"].as_u64().context("no temperature")?;
    ensure!((273..=373).contains(&temperature), "composite temperature of {temperature} K");
    for log in ["list-ns", "error-log", "effects-log", "fw-log", "smart-last"] {
        json(&guest, log)?;
    }
    served.stop()?;
    Ok(())
}

/// The JSON that the script printed between `@json NAME` and `@end`.
fn json(guest: &Guest, name: &str) -> Result<Value> {
    let head = format!("@json {name}");
    let mut lines = guest.output.iter().skip_while(|line| **line != head).skip(1);
    let text: String = lines.by_ref().take_while(|line| *line != "@end").map(|line| format!("{line}\n")).collect();
    serde_json::from_str(&text).context(format!("output of nvme {name}"))
}
