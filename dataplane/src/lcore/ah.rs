//! Address handles: the packet headers that datagrams to a destination begin with. The engine knows which handles exist and who
//! may use them; here is what they stand for, made and freed between bursts, by messages.

use roceline_engine::verbs::Path;
use roceline_engine::wire::{Gid, HeaderTemplate, udp_sport};

use super::context::ContextKey;
use super::nic::Nic;

/// P_Key of the default partition, as a full member.
const PKEY: u16 = 0xffff;

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    /// Whose.
    pub context: ContextKey,
    /// PD handle.
    pub pd: u32,
    /// Where it leads.
    pub path: Path,
    /// Headers, without a destination QPN.
    pub template: HeaderTemplate,
}

impl Ah {
    /// The handle for a path; its packets have headers for `sent`, the same path with the ECN field that they have.
    pub fn new(context: ContextKey, pd: u32, path: &Path, sent: &Path) -> Ah {
        Ah {
            context,
            pd,
            path: *path,
            template: headers(sent),
        }
    }

    /// From now on packets have headers for `sent`.
    pub fn render(&mut self, sent: &Path) {
        self.template = headers(sent);
    }
}

/// One source port for a destination, so that its datagrams stay in order where routers spread flows.
fn headers(path: &Path) -> HeaderTemplate {
    let sport = udp_sport(path.flow_label, fold(path.sgid), fold(path.dgid));
    HeaderTemplate::new(path, sport, 0, PKEY)
}

/// 24 bits of a GID that differ between neighbours, and are not 0.
fn fold(gid: Gid) -> u32 {
    let [.., a, b, c] = gid.0;
    u32::from_be_bytes([0, a, b, c]) | 1 << 23
}

impl Nic {
    /// Keeps a new handle under its index.
    pub fn put_ah(&mut self, index: u32, ah: Ah) {
        let index = index as usize;
        if index >= self.ahs.len() {
            self.ahs.resize_with(index + 1, || None);
        }
        self.ahs[index] = Some(ah);
    }

    /// Frees a handle, if the context has it.
    pub fn free_ah(&mut self, number: u32, context: ContextKey) -> Option<Ah> {
        let index = self.engine.ah_index(number)? as usize;
        let ah = self
            .ahs
            .get_mut(index)?
            .take_if(|ah| ah.context == context)?;
        // It exists: its index was just found.
        let _ = self.engine.destroy_ah(number);
        Some(ah)
    }
}
