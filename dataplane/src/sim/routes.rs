//! Routes: at each switch all ports that begin a shortest path to a NIC, among which flows are spread by their hashes (ECMP).

use roceline_engine::fabric::switch::SwitchError;

use super::{NodeId, Point, Sim, SwitchId};
use crate::fabric::plan::distances;

impl Sim {
    /// Where the link of a NIC, or of a port of a switch, leads.
    pub fn opposite(&self, from: impl Into<Point>) -> Option<Point> {
        self.link_at(from.into()).map(|link| self.links[link].to)
    }

    /// Computes and sets the routes of all switches. Call it when all links are there.
    ///
    /// # Errors
    /// Never for ports that exist.
    pub fn set_routes(&mut self) -> Result<(), SwitchError> {
        let neighbours: Vec<Vec<(u16, SwitchId)>> = (0..self.switches.len())
            .map(|switch| {
                let ports = 0..self.switches[switch].ports() as u16;
                ports
                    .filter_map(|port| match self.opposite((switch, port))? {
                        Point::Port(other, _) => Some((port, other)),
                        Point::Node(_) => None,
                    })
                    .collect()
            })
            .collect();
        let others = |ways: &Vec<(u16, SwitchId)>| ways.iter().map(|&(_, other)| other).collect();
        let joined: Vec<Vec<SwitchId>> = neighbours.iter().map(others).collect();
        let mut at: Vec<Vec<(NodeId, u16)>> = vec![Vec::new(); self.switches.len()];
        for node in 0..self.nodes.len() {
            if let Some(Point::Port(switch, port)) = self.opposite(node) {
                at[switch].push((node, port));
            }
        }
        // The way is the same to all NICs at a switch.
        for (home, nodes) in at.iter().enumerate().filter(|(_, nodes)| !nodes.is_empty()) {
            let distance = distances(&joined, home);
            for (switch, ways) in neighbours.iter().enumerate() {
                if switch == home {
                    for &(node, port) in nodes {
                        self.switches[home].switch.set_route(node as u32, &[port])?;
                    }
                    continue;
                }
                let nearer = |&&(_, other): &&(u16, SwitchId)| {
                    distance[other].is_some_and(|d| distance[switch] == Some(d + 1))
                };
                let ports: Vec<u16> = ways.iter().filter(nearer).map(|&(port, _)| port).collect();
                for &(node, _) in nodes {
                    self.switches[switch]
                        .switch
                        .set_route(node as u32, &ports)?;
                }
            }
        }
        Ok(())
    }
}
