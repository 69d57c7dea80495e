//! Packet buffers of the lcores: one pool for all, or on a machine with several NUMA nodes one for the lcores of each
//! node, from that node's memory.
//!
//! A frame that goes to another lcore stays where it is, and its buffer comes back to the pool that it is of.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::config::Config;
use crate::fabric::Fabric;
use crate::port::{Eal, Mempool, MempoolConfig, PortError};

/// Mbufs of an lcore: what two NICs have in links, bursts and memory operations.
const MBUFS: u32 = 8192;

/// The pool of an lcore.
#[derive(Clone)]
pub(super) struct Share {
    /// The pool.
    pub pool: Arc<Mempool>,
    /// Lcores that have it.
    pub sharers: usize,
}

/// A pool for each lcore, by number.
pub(super) fn pools(eal: &Eal, config: &Config) -> Result<Vec<Share>, PortError> {
    let nodes = nodes(Path::new("/sys/devices/system/cpu"));
    // The scheduler may move those that are on no CPU of their own: memory from anywhere is as good.
    let node = |cpu: Option<usize>| cpu.and_then(|cpu| nodes.get(&cpu).copied());
    let of_lcores = config.lcores.iter().map(|lcore| node(lcore.cpu));
    let of_lcores: Vec<Option<u32>> = of_lcores.collect();
    let mut made: BTreeMap<Option<u32>, Share> = BTreeMap::new();
    let mut shares = Vec::new();
    for node in &of_lcores {
        if !made.contains_key(node) {
            let numbers = (0..of_lcores.len()).filter(|&lcore| of_lcores[lcore] == *node);
            let numbers: Vec<usize> = numbers.collect();
            let sharers = numbers.len();
            let pool = pool(eal, *node, mbufs(config, &numbers))?;
            made.insert(*node, Share { pool, sharers });
        }
        shares.push(made[node].clone());
    }
    Ok(shares)
}

/// What the NICs of these lcores need, and what switches, and rings that were set, can hold of theirs.
fn mbufs(config: &Config, lcores: &[usize]) -> u32 {
    let rings = config.nics.iter().map(|nic| {
        // A queue for each of them.
        let queues = nic.lcores.iter().filter(|lcore| lcores.contains(lcore));
        u64::from(nic.rings.more_mbufs(&nic.port)) * queues.count() as u64
    });
    let usual = u64::from(MBUFS) * lcores.len() as u64;
    let all = usual + Fabric::mbufs(&config.fabric) + rings.sum::<u64>();
    u32::try_from(all).unwrap_or(u32::MAX)
}

fn pool(eal: &Eal, node: Option<u32>, count: u32) -> Result<Arc<Mempool>, PortError> {
    let name = node.map_or("mbufs".into(), |node| format!("mbufs{node}"));
    let config = MempoolConfig {
        name,
        count,
        socket: node,
        ..MempoolConfig::default()
    };
    let made = Mempool::new(eal, &config);
    let (Some(node), Err(error)) = (node, &made) else {
        return made;
    };
    // Without hugepages EAL has memory of one node only.
    tracing::warn!(node, %error, "no packet buffers on this NUMA node: they come from another");
    let anywhere = MempoolConfig {
        socket: None,
        ..config
    };
    Mempool::new(eal, &anywhere)
}

/// The NUMA node of each CPU; none where all are on the same.
fn nodes(cpus: &Path) -> BTreeMap<usize, u32> {
    let number = |name: &str, of: &str| name.strip_prefix(of)?.parse::<u32>().ok();
    let mut nodes = BTreeMap::new();
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    for cpu in entries(cpus) {
        let Some(index) = cpu
            .file_name()
            .to_str()
            .and_then(|name| number(name, "cpu"))
        else {
            continue;
        };
        // `cpuN` has a link `nodeM`.
        let mut links = entries(&cpu.path());
        let node = links.find_map(|link| number(link.file_name().to_str()?, "node"));
        if let Some(node) = node {
            nodes.insert(index as usize, node);
        }
    }
    let mut all = nodes.values();
    let first = all.next();
    if all.all(|node| Some(node) == first) {
        nodes.clear();
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_count_where_there_are_several() {
        let dir = std::env::temp_dir().join(format!("roceline-nodes-{}", std::process::id()));
        let machine = |cpus: &[(usize, u32)]| {
            let _ = fs::remove_dir_all(&dir);
            for (cpu, node) in cpus {
                fs::create_dir_all(dir.join(format!("cpu{cpu}/node{node}"))).unwrap();
            }
            fs::create_dir_all(dir.join("cpufreq")).unwrap();
            nodes(&dir)
        };
        assert_eq!(machine(&[(0, 0), (1, 0)]), BTreeMap::new());
        let two = machine(&[(0, 0), (1, 1), (12, 1)]);
        assert_eq!(two, BTreeMap::from([(0, 0), (1, 1), (12, 1)]));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(nodes(&dir), BTreeMap::new());
    }
}
