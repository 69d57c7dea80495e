//! Which port leads to a destination: static routes, of one or several equal paths. Which path a flow takes is decided by
//! its hash (ECMP, RFC 2992 on what that does), mixed with the switch's own seed, so that switches in a row do not
//! all decide alike and leave paths unused.

use super::config::SwitchError;

/// A destination, numbered by whoever makes the switch, from 0.
pub type Destination = u32;

/// The table.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    seed: u64,
    ports: usize,
    /// By destination: where its ports begin in `all`, and how many there are.
    of: Vec<(u32, u32)>,
    all: Vec<u16>,
}

impl Routes {
    pub(super) fn new(ports: usize, seed: u64) -> Routes {
        Routes {
            seed,
            ports,
            of: Vec::new(),
            all: Vec::new(),
        }
    }

    /// Sets the equal paths to a destination; none: it cannot be reached.
    pub(super) fn set(&mut self, dst: Destination, ports: &[u16]) -> Result<(), SwitchError> {
        if let Some(&port) = ports.iter().find(|p| usize::from(**p) >= self.ports) {
            let ports = self.ports;
            return Err(SwitchError::Route { port, ports });
        }
        let at = dst as usize;
        if at >= self.of.len() {
            self.of.resize(at + 1, (0, 0));
        }
        self.of[at] = (self.all.len() as u32, ports.len() as u32);
        self.all.extend_from_slice(ports);
        Ok(())
    }

    /// The port for a flow to a destination.
    #[inline]
    pub(super) fn find(&self, dst: Destination, flow_hash: u32) -> Option<u16> {
        let &(start, count) = self.of.get(dst as usize)?;
        let choice = match count {
            0 => return None,
            1 => 0,
            _ => {
                // The finalizer of splitmix64 over the flow and the seed.
                let z = u64::from(flow_hash) ^ self.seed;
                let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((u64::from((z >> 32) as u32) * u64::from(count)) >> 32) as u32
            }
        };
        self.all.get((start + choice) as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_keeps_its_path_and_flows_spread() {
        let mut routes = Routes::new(8, 7);
        routes.set(2, &[4, 5, 6, 7]).unwrap();
        routes.set(0, &[1]).unwrap();
        assert_eq!(routes.find(0, 99), Some(1));
        assert_eq!(routes.find(1, 99), None);
        assert_eq!(routes.find(9, 99), None);
        let mut taken = [0; 8];
        for flow in 0..4_000 {
            let port = routes.find(2, flow).unwrap();
            assert_eq!(routes.find(2, flow), Some(port));
            taken[usize::from(port)] += 1;
        }
        assert!(
            taken[4..].iter().all(|n| (850..1150).contains(n)),
            "{taken:?}"
        );
        let wrong = SwitchError::Route { port: 8, ports: 8 };
        assert_eq!(routes.set(3, &[0, 8]), Err(wrong));
    }

    /// Flows that one switch sends to the same port are spread again by the next one.
    #[test]
    fn switches_in_a_row_do_not_decide_alike() {
        let [mut first, mut second] = [1, 2].map(|seed| Routes::new(2, seed));
        first.set(0, &[0, 1]).unwrap();
        second.set(0, &[0, 1]).unwrap();
        let left = (0..4_000).filter(|f| first.find(0, *f) == Some(0));
        let (mut zero, mut all) = (0, 0);
        for flow in left {
            all += 1;
            zero += usize::from(second.find(0, flow) == Some(0));
        }
        assert!((0.45..0.55).contains(&(f64::from(zero as u32) / f64::from(all))));
    }
}
