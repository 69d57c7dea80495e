//! The numbers that the reaction point and the notification point go by, in the units of mlx5.

/// Bytes of one step of `rpg_byte_reset`.
pub const BYTE_RESET_UNIT: u64 = 64;

/// DCQCN's reaction point. Names as in mlx5's `ecn/roce_rp` without the prefix `rpg_`; what each does to the curve
/// is in `docs/congestion.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcqcnParams {
    /// 1024 times the weight of the old alpha in an update: 1020 is a gain g of 4/1024 = 1/256.
    pub dce_tcp_g: u32,
    /// Microseconds between updates of alpha.
    pub dce_tcp_rtt: u32,
    /// Alpha at the first CNP, in 1/1024.
    pub initial_alpha_value: u32,
    /// Microseconds between looks for a CNP that lowers the rate. 0: each CNP lowers it, and raises alpha, at
    /// once, and alpha falls after `dce_tcp_rtt` without any, as in the SIGCOMM'15 paper.
    pub rate_reduce_monitor_period: u32,
    /// Megabits per second that current and target rate are set to at the first CNP; 0: they are not.
    pub rate_to_set_on_first_cnp: u32,
    /// Share of the rate, in per cent, that a single reduction leaves at least.
    pub min_dec_fac: u32,
    /// Megabits per second below which a rate does not fall.
    pub min_rate: u32,
    /// Megabits per second at which a queue pair is no longer limited; 0: line rate.
    pub max_rate: u32,
    /// A reduction takes `rate * alpha / 2^gd`, alpha in 1/1024: 11 is alpha/2, 10 is alpha.
    pub gd: u32,
    /// Each reduction makes the current rate the target, whatever raised it before.
    pub clamp_tgt_rate: bool,
    /// A reduction makes the current rate the target if a timer raised the rate since the last one.
    pub clamp_tgt_rate_after_time_inc: bool,
    /// Steps of fast recovery before additive increase.
    pub threshold: u32,
    /// Microseconds without a reduction between increases.
    pub time_reset: u32,
    /// Bytes between increases, in units of [`BYTE_RESET_UNIT`]; 0: bytes do not count.
    pub byte_reset: u32,
    /// Megabits per second that an additive increase raises the target by.
    pub ai_rate: u32,
    /// Megabits per second that a hyper increase raises the target by.
    pub hai_rate: u32,
}

/// Whose CNPs the least time between two counts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CnpModeration {
    /// Each queue pair's.
    #[default]
    PerQp,
    /// Each peer address's.
    PerIp,
}

/// The notification point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpParams {
    /// Microseconds from one CNP of a flow to the next, at least; 0: one for each marked packet.
    pub min_time_between_cnps: u32,
    /// DSCP of CNPs.
    pub cnp_dscp: u8,
    /// 802.1p priority of CNPs, where frames have a tag.
    pub cnp_802p_prio: u8,
    /// Instead of it, that of the queue pair whose peer is told: mlx5's `cnp_prio_mode` 1.
    pub cnp_prio_of_qp: bool,
    /// Nanoseconds from a marked packet to its CNP.
    pub cnp_delay: u32,
    /// ACKs, by which round trips are measured, have `rtt_resp_dscp` and not the DSCP of their queue pair.
    pub rtt_resp_dscp_valid: bool,
    /// DSCP of ACKs.
    pub rtt_resp_dscp: u8,
    /// What a flow is.
    pub cnp_moderation: CnpModeration,
}

/// DCTCP as a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DctcpParams {
    /// Weight of a window's share of marked packets in alpha, in 1/1024.
    pub g: u32,
    /// Megabits per second that a window without marks adds.
    pub ai_rate: u32,
    /// Microseconds of a window before a round trip was measured.
    pub rtt: u32,
}

/// TIMELY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelyParams {
    /// Weight of a new difference of round trips, in 1/1024.
    pub ewma: u32,
    /// Share of the gradient, or of the excess above `t_high`, that is taken from the rate, in 1/1024.
    pub beta: u32,
    /// Microseconds of a round trip below which the rate always rises.
    pub t_low: u32,
    /// Microseconds of a round trip above which the rate always falls.
    pub t_high: u32,
    /// Microseconds that gradients are relative to, and that lie between two updates.
    pub min_rtt: u32,
    /// Megabits per second of an increase.
    pub delta: u32,
}

/// Swift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwiftParams {
    /// Microseconds of a round trip that large windows aim at.
    pub base_target: u32,
    /// Microseconds that small windows add to that, at most.
    pub fs_range: u32,
    /// Packets that a round trip below the target adds to the window, in 1/1024.
    pub ai: u32,
    /// Share of the excess that is taken from the window, in 1/1024.
    pub beta: u32,
    /// Share of the window that a reduction takes at most, in 1/1024.
    pub max_mdf: u32,
}

impl NpParams {
    /// DSCP and ECN of CNPs: they can be marked themselves (ECT(0)), as captures of ConnectX have it.
    pub const fn traffic_class(&self) -> u8 {
        const ECT_0: u8 = 2;
        self.cnp_dscp << 2 | ECT_0
    }
}
