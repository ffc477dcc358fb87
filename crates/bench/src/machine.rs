//! Where it was measured.

use serde::Serialize;

/// The machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// CPU model.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Load average of one minute before the run.
    pub load_before: f64,
    /// And after.
    pub load_after: f64,
}

impl Machine {
    /// This one, now. What the kernel does not say is `unknown`, or 0.
    #[must_use]
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let load = load();
        Self {
            kernel: or_unknown(read("/proc/sys/kernel/osrelease").trim()),
            cpu: or_unknown(model(&cpuinfo)),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            load_before: load,
            load_after: load,
        }
    }

    /// Notes the load after the run.
    pub fn after(&mut self) {
        self.load_after = load();
    }
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

fn model(cpuinfo: &str) -> &str {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        line.split_once(':').map(|(_, value)| value.trim())
    };
    field("model name").or_else(|| field("CPU implementer")).unwrap_or_default()
}

fn or_unknown(text: &str) -> String {
    if text.is_empty() { "unknown".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found_in_cpuinfo() {
        assert_eq!(model("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nflags : a b\n"), "Fast CPU @ 3 GHz");
        assert_eq!(model(""), "");
        assert!(Machine::this().cores >= 1);
    }
}
