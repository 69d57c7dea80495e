//! The machine's own RDMA devices, which programs see beside ours: links from our device tree into the kernel's.
//!
//! In: `/sys/class/infiniband*`, `/sys/class/misc/rdma_cm` and `/dev/infiniband`, looked at from time to time, because
//! devices come and go. Out: links of the same names in the view of all devices; what the tree has itself stays. The
//! devices themselves are not touched: a program that follows a link is in the kernel's tree, and the shim opens the
//! node that a link in our `/dev/infiniband` names.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Links: path below a view, and where it leads.
pub type Links = BTreeMap<PathBuf, PathBuf>;

/// The first N of our `uverbsN` on a machine that can have others. The kernel gives out the lowest free number, so
/// devices that come later do not meet ours.
const BEYOND: u32 = 512;

/// Where the kernel shows its devices.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What stands for `/`; `None` to see no device.
    root: Option<PathBuf>,
}

impl Machine {
    /// For tests: names the directory that stands for `/`.
    pub const VARIABLE: &'static str = "ROCELINE_MACHINE_ROOT";

    /// This machine, or what the environment says stands for it.
    pub fn from_environment() -> Machine {
        let named = env::var_os(Machine::VARIABLE).filter(|root| !root.is_empty());
        Machine {
            root: Some(named.map_or_else(|| "/".into(), PathBuf::from)),
        }
    }

    /// A machine that never has a device.
    pub fn without_devices() -> Machine {
        Machine { root: None }
    }

    /// N of our first `uverbsN`: 0, unless the kernel's RDMA subsystem is loaded and gives such numbers too.
    pub fn first_uverbs(&self) -> u32 {
        let Some(root) = &self.root else { return 0 };
        let Ok(nodes) = fs::read_dir(root.join("sys/class/infiniband_verbs")) else {
            return 0;
        };
        let number = |name: &str| name.strip_prefix("uverbs")?.parse::<u32>().ok();
        let numbers = nodes
            .flatten()
            .filter_map(|node| number(node.file_name().to_str()?));
        numbers
            .max()
            .map_or(BEYOND, |highest| BEYOND.max(highest.saturating_add(1)))
    }

    /// What it has at the moment. What cannot be read is not there: a device may go while we look.
    pub fn links(&self) -> Links {
        let mut links = Links::new();
        let Some(root) = &self.root else { return links };
        let classes = root.join("sys/class");
        for class in entries(&classes) {
            if class
                .to_str()
                .is_some_and(|name| name.starts_with("infiniband"))
            {
                for name in entries(&classes.join(&class)) {
                    add(
                        &mut links,
                        root,
                        Path::new("sys/class").join(&class).join(name),
                    );
                }
            }
        }
        let manager = Path::new("sys/class/misc/rdma_cm");
        if root.join(manager).exists() {
            add(&mut links, root, manager.to_owned());
        }
        for name in entries(&root.join("dev/infiniband")) {
            let path = Path::new("dev/infiniband").join(name);
            // As it is: the shim takes the link for the name of the node.
            let node = root.join(&path);
            links.insert(path, node);
        }
        links
    }
}

/// Entries of a class are links themselves: ours lead where they lead.
fn add(links: &mut Links, root: &Path, path: PathBuf) {
    let shown = root.join(&path);
    let target = fs::canonicalize(&shown).unwrap_or(shown);
    links.insert(path, target);
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into()).collect()
}

/// Brings the links in `view` from `present` to `wanted`. Afterwards `present` is what there is: a name that the view has
/// itself is not linked.
pub fn relink(view: &Path, present: &mut Links, wanted: &Links) -> io::Result<()> {
    let gone: Vec<PathBuf> = present
        .iter()
        .filter(|(path, target)| wanted.get(*path) != Some(*target))
        .map(|(path, _)| path.clone())
        .collect();
    for path in gone {
        match fs::remove_file(view.join(&path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => present.remove(&path),
        };
    }
    for (path, target) in wanted {
        if present.contains_key(path) {
            continue;
        }
        let at = view.join(path);
        if let Some(dir) = at.parent() {
            super::tree::make_dir(dir)?;
        }
        match symlink(target, &at) {
            Ok(()) => {
                present.insert(path.clone(), target.clone());
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with one device and a connection manager, and an empty view; both go with the value.
    struct Bench {
        dir: PathBuf,
        machine: Machine,
    }

    impl Bench {
        fn new(name: &str) -> Bench {
            let dir =
                env::temp_dir().join(format!("roceline-machine-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(dir.join("view")).unwrap();
            let machine = Machine {
                root: Some(dir.join("root")),
            };
            Bench { dir, machine }
        }

        fn root(&self, path: &str) -> PathBuf {
            self.dir.join("root").join(path)
        }

        fn view(&self, path: &str) -> PathBuf {
            self.dir.join("view").join(path)
        }

        /// A device as sysfs has it: a directory somewhere, and links from the classes.
        fn device(&self, name: &str, n: u32) {
            for (class, entry) in [
                ("infiniband", name),
                ("infiniband_verbs", &format!("uverbs{n}")),
            ] {
                let at = self.root("sys/devices/pci").join(class).join(entry);
                fs::create_dir_all(&at).unwrap();
                let class = self.root("sys/class").join(class);
                fs::create_dir_all(&class).unwrap();
                symlink(at, class.join(entry)).unwrap();
            }
            let nodes = self.root("dev/infiniband");
            fs::create_dir_all(&nodes).unwrap();
            fs::write(nodes.join(format!("uverbs{n}")), "").unwrap();
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn devices_come_and_go() {
        let bench = Bench::new("life");
        let mut present = Links::new();
        let mut follow = || {
            relink(
                &bench.dir.join("view"),
                &mut present,
                &bench.machine.links(),
            )
        };
        follow().unwrap();
        assert!(!bench.view("sys").exists());

        bench.device("mlx5_0", 0);
        fs::create_dir_all(bench.root("sys/class/misc/rdma_cm")).unwrap();
        fs::create_dir_all(bench.root("sys/class/net/eth0")).unwrap();
        for _ in 0..2 {
            follow().unwrap();
            for (path, target) in [
                (
                    "sys/class/infiniband/mlx5_0",
                    "sys/devices/pci/infiniband/mlx5_0",
                ),
                (
                    "sys/class/infiniband_verbs/uverbs0",
                    "sys/devices/pci/infiniband_verbs/uverbs0",
                ),
                ("sys/class/misc/rdma_cm", "sys/class/misc/rdma_cm"),
                ("dev/infiniband/uverbs0", "dev/infiniband/uverbs0"),
            ] {
                let link = fs::read_link(bench.view(path)).unwrap();
                assert_eq!(link, bench.root(target), "{path}");
            }
            assert!(!bench.view("sys/class/net").exists());
        }

        fs::remove_file(bench.root("sys/class/infiniband/mlx5_0")).unwrap();
        fs::remove_file(bench.root("dev/infiniband/uverbs0")).unwrap();
        follow().unwrap();
        let gone = |path: &str| fs::symlink_metadata(bench.view(path)).is_err();
        assert!(gone("sys/class/infiniband/mlx5_0") && gone("dev/infiniband/uverbs0"));
        assert!(!gone("sys/class/infiniband_verbs/uverbs0"));
    }

    #[test]
    fn what_the_view_has_itself_stays() {
        let bench = Bench::new("own");
        bench.device("roce0", 3);
        fs::create_dir_all(bench.view("sys/class/infiniband/roce0")).unwrap();
        let mut present = Links::new();
        let wanted = bench.machine.links();
        relink(&bench.dir.join("view"), &mut present, &wanted).unwrap();
        assert!(bench.view("sys/class/infiniband/roce0").is_dir());
        assert!(!present.contains_key(Path::new("sys/class/infiniband/roce0")));
        relink(&bench.dir.join("view"), &mut present, &Links::new()).unwrap();
        assert!(bench.view("sys/class/infiniband/roce0").is_dir());
        assert!(present.is_empty());
    }

    #[test]
    fn our_numbers_are_beyond_the_kernels() {
        assert_eq!(Machine::without_devices().first_uverbs(), 0);
        let bench = Bench::new("numbers");
        assert_eq!(bench.machine.first_uverbs(), 0, "no RDMA subsystem");
        fs::create_dir_all(bench.root("sys/class/infiniband_verbs")).unwrap();
        let first = bench.machine.first_uverbs();
        assert_eq!(first, BEYOND, "devices may come");
        bench.device("mlx5_0", 0);
        assert_eq!(bench.machine.first_uverbs(), BEYOND);
        bench.device("mlx5_700", 700);
        assert_eq!(bench.machine.first_uverbs(), 701);
    }
}
