//! `shadowbell identify`.

use std::{fmt::Write as _, sync::Arc};

use driver::{
    Device, DoorbellPolicy, Options, Transport,
    nvme::identify::{IdentifyController, IdentifyNamespace, flbas, psd_flags},
};
use serde_json::{Map, Value, json};

use crate::{
    bench_target::{Local, Service, connect},
    cli::{DoorbellsArg, IdentifyArgs, IdentifyFormat, IdentifyTarget},
    identify_fields::{Field, controller, namespace},
    output::{Failure, say},
};

/// Asks the controller, and prints what it says.
pub(crate) fn run(args: &IdentifyArgs) -> Result<(), Failure> {
    let (transport, name): (Arc<dyn Transport>, String) = match &args.target {
        IdentifyTarget::Socket(path) => (connect(path)?, format!("socket {}", path.display())),
        IdentifyTarget::Disk(disk) => (
            Local::start(disk, 64, 1024, Service { poll: None, doorbells: DoorbellsArg::Auto })?.0,
            format!("disk {disk}"),
        ),
    };
    let failed = |error: driver::Error| Failure::runtime(format!("{name}: {error}"));
    // Registers: nothing of what is asked needs more.
    let options = Options { doorbells: DoorbellPolicy::Register, io_queue_pairs: 1, ..Options::default() };
    let mut device = Device::open(transport, options).map_err(failed)?;
    let identify = *device.identify();
    let mut namespaces = Vec::new();
    for nsid in device.active_namespaces().map_err(failed)? {
        namespaces.push((nsid, device.identify_namespace(nsid).map_err(failed)?));
    }
    drop(device);
    say(&match args.output_format {
        IdentifyFormat::Text => text(&identify, &namespaces),
        IdentifyFormat::Json => {
            let json = serde_json::to_string_pretty(&to_json(&identify, &namespaces));
            json.map_err(|error| Failure::runtime(error.to_string()))? + "\n"
        }
    });
    Ok(())
}

fn text(identify: &IdentifyController, namespaces: &[(u32, Box<IdentifyNamespace>)]) -> String {
    let mut text = "NVME Identify Controller:\n".to_owned();
    lines(&mut text, &controller(identify));
    for (index, state) in identify.psd.iter().enumerate().take(usize::from(identify.npss_z) + 1) {
        let operational = state.flags & psd_flags::NON_OPERATIONAL == 0;
        let _ = writeln!(
            text,
            "ps {index:>6} : mp:{:.2}W {}operational enlat:{} exlat:{} rrt:{} rrl:{}",
            watts(state.mp.get(), state.flags),
            if operational { "" } else { "non-" },
            state.enlat,
            state.exlat,
            state.rrt,
            state.rrl
        );
    }
    for (nsid, identify) in namespaces {
        let _ = writeln!(text, "\nNVME Identify Namespace {nsid}:");
        lines(&mut text, &namespace(identify));
        let used = usize::from(flbas::index(identify.flbas));
        for (index, format) in formats(identify) {
            let _ = writeln!(
                text,
                "lbaf {index:>4} : ms:{:<3} lbads:{:<2} rp:{:#x}{}",
                format.ms,
                format.lbads,
                format.rp,
                if index == used { " (in use)" } else { "" }
            );
        }
    }
    text
}

fn lines(text: &mut String, fields: &[Field]) {
    for Field { name, text: value, .. } in fields {
        let _ = writeln!(text, "{name:<9} : {value}");
    }
}

fn watts(power: u16, flags: u8) -> f64 {
    f64::from(power) * if flags & psd_flags::MAX_POWER_SCALE == 0 { 0.01 } else { 0.0001 }
}

/// The LBA formats that a namespace has.
fn formats(identify: &IdentifyNamespace) -> impl Iterator<Item = (usize, &driver::nvme::identify::LbaFormat)> {
    let count = usize::from(identify.nlbaf_z) + 1 + usize::from(identify.nulbaf);
    identify.lbaf.iter().enumerate().take(count)
}

fn to_json(identify: &IdentifyController, namespaces: &[(u32, Box<IdentifyNamespace>)]) -> Value {
    let map = |fields: Vec<Field>| -> Map<String, Value> {
        fields.into_iter().map(|field| (field.name.to_owned(), field.value)).collect()
    };
    let mut id_ctrl = map(controller(identify));
    let states = identify.psd.iter().take(usize::from(identify.npss_z) + 1).map(|state| {
        json!({
            "max_power": state.mp.get(), "flags": state.flags, "entry_lat": state.enlat.get(),
            "exit_lat": state.exlat.get(), "read_tput": state.rrt, "read_lat": state.rrl,
            "write_tput": state.rwt, "write_lat": state.rwl,
        })
    });
    id_ctrl.insert("psds".to_owned(), states.collect());
    let namespaces = namespaces.iter().map(|(nsid, identify)| {
        let mut id_ns = map(namespace(identify));
        let formats = formats(identify).map(|(_, f)| json!({"ms": f.ms.get(), "ds": f.lbads, "rp": f.rp}));
        id_ns.insert("lbafs".to_owned(), formats.collect());
        json!({"nsid": nsid, "id_ns": id_ns})
    });
    json!({"id_ctrl": id_ctrl, "namespaces": namespaces.collect::<Vec<_>>()})
}
