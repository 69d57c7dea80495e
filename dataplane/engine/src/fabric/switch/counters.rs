//! What a switch counts: by port and priority, on the way in and on the way out.

/// Of one egress queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Frames that left with a congestion mark of this switch.
    pub ce_marked: u64,
    /// Frames that had no room in a lossy class.
    pub dropped: u64,
    /// Frames dropped where an ECN-capable one would have been marked.
    pub dropped_not_ect: u64,
    /// Frames dropped because the station beyond the port does not end its pause.
    pub dropped_storm: u64,
    /// Bytes of all that were dropped.
    pub dropped_bytes: u64,
    /// The most bytes that waited.
    pub max_depth: u64,
}

/// Of one priority of an ingress port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngressCounters {
    /// Frames that came, dropped ones included; of those for everybody, each copy.
    pub rx_frames: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
    /// Frames of a lossless class that had no room, not even headroom: it is too small.
    pub dropped: u64,
    /// Bytes of them.
    pub dropped_bytes: u64,
    /// Frames to destinations without a route.
    pub unroutable: u64,
    /// The most bytes of headroom in use.
    pub max_headroom: u32,
}
