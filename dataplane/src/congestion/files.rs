//! The settings as files of a device, where the drivers of ConnectX NICs have theirs: `ecn/roce_rp` and `ecn/roce_np` as in
//! NVIDIA's OFED, `cc_params` as in mlx5's debugfs (Linux `drivers/infiniband/hw/mlx5/cong.c`). In: settings, paths. Out: texts,
//! and changes.

use std::path::{Component, Path};

use roceline_engine::congestion::{Group, Param};

use super::{Settings, keys};
use crate::impair::SpecError;

/// Classes of sysfs in which the files are found.
const CLASSES: [&str; 2] = ["infiniband", "net"];
/// Folders of a device that hold nothing else.
pub const FOLDERS: [&str; 2] = ["ecn", "cc_params"];

/// What a file is.
#[derive(Clone, Copy, Debug)]
pub enum Attribute {
    /// A parameter.
    Param(&'static Param),
    /// Whether one priority is on, a bit of the parameter.
    Bit(&'static Param, u8),
}

impl Attribute {
    /// The device and the attribute of a path below `/sys/class`.
    pub fn of_path(path: &Path) -> Option<(&str, Attribute)> {
        let mut parts = Vec::new();
        for part in path.strip_prefix("/sys/class").ok()?.components() {
            match part {
                Component::Normal(part) => parts.push(part.to_str()?),
                _ => return None,
            }
        }
        let [class, device, below @ ..] = parts.as_slice() else {
            return None;
        };
        let attribute = CLASSES.contains(class).then(|| Attribute::find(below))?;
        Some((*device, attribute?))
    }

    fn find(below: &[&str]) -> Option<Attribute> {
        let side = |group| match group {
            "roce_rp" => Some((Group::Rp, "rp_enable")),
            "roce_np" => Some((Group::Np, "np_enable")),
            _ => None,
        };
        match *below {
            ["ecn", group, name] => Param::find(name)
                .filter(|param| {
                    param.name == name && side(group).is_some_and(|s| s.0 == param.group)
                })
                .map(Attribute::Param),
            ["ecn", group, "enable", priority] => {
                let bit = priority
                    .parse()
                    .ok()
                    .filter(|bit| *bit < 8 && priority.len() == 1)?;
                Some(Attribute::Bit(Param::find(side(group)?.1)?, bit))
            }
            ["cc_params", name] => Param::find(name)
                .filter(|param| param.debugfs == name)
                .map(Attribute::Param),
            _ => None,
        }
    }

    /// Sets it to what somebody wrote: a number, as the kernel takes it.
    pub fn set(&self, settings: &mut Settings, text: &str) -> Result<(), SpecError> {
        let text = text.trim();
        match *self {
            Attribute::Param(param) => keys::set(settings, param.name, text),
            Attribute::Bit(param, bit) => {
                let mask = param.get(&settings.congestion);
                let mask = match text {
                    "0" => mask & !(1 << bit),
                    "1" => mask | 1 << bit,
                    _ => {
                        return Err(SpecError::Value {
                            key: "enable",
                            value: format!("{:?}", crate::impair::shortened(text)),
                            problem: "must be 0 or 1".into(),
                        });
                    }
                };
                keys::set(settings, param.name, &mask.to_string())
            }
        }
    }
}

/// All files with their texts, without the newline, by path below the device.
pub fn files(settings: &Settings) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for param in Param::all() {
        let value = param.get(&settings.congestion);
        let folder = match (param.group, param.name) {
            (Group::Rp, _) => Some("roce_rp"),
            (Group::Np, _) => Some("roce_np"),
            (Group::Own, _) => None,
        };
        if let Some(folder) = folder {
            all.push((format!("ecn/{folder}/{}", param.name), value.to_string()));
        }
        if !param.debugfs.is_empty() {
            all.push((format!("cc_params/{}", param.debugfs), value.to_string()));
        }
        let side = match param.name {
            "rp_enable" => "roce_rp",
            "np_enable" => "roce_np",
            _ => continue,
        };
        for bit in 0..8 {
            let on = value >> bit & 1;
            all.push((format!("ecn/{side}/enable/{bit}"), on.to_string()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(path: &str) -> Option<(&str, Attribute)> {
        Attribute::of_path(Path::new(path))
    }

    #[test]
    fn every_file_is_found_and_takes_what_it_shows() {
        let settings = Settings::default();
        for (path, text) in files(&settings) {
            for class in CLASSES {
                let path = format!("/sys/class/{class}/roce0/{path}");
                let (device, attribute) = attribute(&path).unwrap_or_else(|| panic!("{path}"));
                assert_eq!(device, "roce0");
                let mut changed = settings;
                attribute.set(&mut changed, &format!("{text}\n")).unwrap();
                assert_eq!(changed.values(), settings.values(), "{path}");
            }
        }
    }

    #[test]
    fn files_of_ofed_and_debugfs_are_there_once() {
        let mut names: Vec<String> = files(&Settings::default())
            .into_iter()
            .map(|f| f.0)
            .collect();
        for name in [
            "ecn/roce_rp/enable/0",
            "ecn/roce_rp/enable/7",
            "ecn/roce_np/enable/3",
            "ecn/roce_rp/rpg_ai_rate",
            "ecn/roce_rp/rpg_gd",
            "ecn/roce_rp/clamp_tgt_rate",
            "ecn/roce_rp/clamp_tgt_rate_after_time_inc",
            "ecn/roce_rp/dce_tcp_g",
            "ecn/roce_rp/initial_alpha_value",
            "ecn/roce_rp/rate_reduce_monitor_period",
            "ecn/roce_np/cnp_dscp",
            "ecn/roce_np/cnp_802p_prio",
            "ecn/roce_np/min_time_between_cnps",
            "cc_params/rp_ai_rate",
            "cc_params/np_cnp_dscp",
        ] {
            assert!(names.iter().any(|n| n == name), "{name}");
        }
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn a_priority_is_turned_off_alone() {
        let mut settings = Settings::default();
        let (_, third) = attribute("/sys/class/infiniband/roce0/ecn/roce_np/enable/3").unwrap();
        third.set(&mut settings, "0").unwrap();
        assert_eq!(settings.congestion.np_enable, 0xf7);
        assert_eq!(settings.congestion.rp_enable, 0xff);
        third.set(&mut settings, " 1\n").unwrap();
        assert_eq!(settings, Settings::default());
        assert!(third.set(&mut settings, "2").is_err());
    }

    #[test]
    fn other_paths_are_nothing() {
        for path in [
            "/sys/class/infiniband/roce0/ecn",
            "/sys/class/infiniband/roce0/ecn/roce_rp/cnp_dscp",
            "/sys/class/infiniband/roce0/ecn/roce_rp/rp_ai_rate",
            "/sys/class/infiniband/roce0/ecn/roce_rp/enable/8",
            "/sys/class/infiniband/roce0/ecn/roce_rp/enable/00",
            "/sys/class/infiniband/roce0/ecn/roce_rp/enable/+1",
            "/sys/class/infiniband/roce0/cc_params/rpg_ai_rate",
            "/sys/class/infiniband/roce0/cc_params/",
            "/sys/class/infiniband/roce0/../roce1/ecn/roce_rp/rpg_gd",
            "/sys/class/block/roce0/ecn/roce_rp/rpg_gd",
            "ecn/roce_rp/rpg_gd",
            "",
        ] {
            assert!(attribute(path).is_none(), "{path}");
        }
    }
}
