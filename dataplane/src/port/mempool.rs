//! Mempools: a fixed number of equal mbufs, shared by the ports and stages of any lcore. Running dry is an
//! ordinary event: it is counted, and the caller tries again later.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dpdk_sys as sys;

use super::eal::{last_errno, strerror};
use super::{Burst, Eal, Mbuf, PortError};

/// What a mempool is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MempoolConfig {
    /// Unique name, 25 bytes at most.
    pub name: String,
    /// Number of mbufs. Keep it small: what is in the cache is fast.
    pub count: u32,
    /// Bytes of frame that an mbuf holds, behind the 128 bytes of headroom.
    pub data_room: u32,
    /// Mbufs that each lcore may keep to itself, 512 at most.
    pub cache: u32,
    /// NUMA node, or any.
    pub socket: Option<u32>,
}

impl Default for MempoolConfig {
    fn default() -> MempoolConfig {
        MempoolConfig {
            name: "mbufs".into(),
            count: 4096,
            data_room: Mempool::JUMBO_DATA_ROOM,
            cache: 256,
            socket: None,
        }
    }
}

/// A pool of mbufs.
#[derive(Debug)]
pub struct Mempool {
    raw: NonNull<sys::rte_mempool>,
    config: MempoolConfig,
    exhausted: AtomicU64,
    eal: Eal,
}

// SAFETY: rte_mempool allocates and frees from any number of threads at once.
unsafe impl Send for Mempool {}
// SAFETY: as above; the other fields are immutable or atomic.
unsafe impl Sync for Mempool {}

impl Mempool {
    /// Holds every frame of path MTU 4096: 14 + 4 (VLAN) + 40 (IPv6) + 8 (UDP) + 12 (BTH) + 28 (AtomicETH, the
    /// longest extension) + 4096 + 4 (ICRC), and port MTU 4200 with its Ethernet header, in whole cache lines.
    pub const JUMBO_DATA_ROOM: u32 = 4352;

    /// Makes a pool.
    ///
    /// # Errors
    ///
    /// When a setting is out of range, the name is taken or EAL's memory does not suffice.
    pub fn new(eal: &Eal, config: &MempoolConfig) -> Result<Arc<Mempool>, PortError> {
        let out_of_range = |setting, value: u64, remedy| {
            Err(PortError::MempoolConfig {
                name: config.name.clone(),
                setting,
                value,
                remedy,
            })
        };
        if config.name.is_empty() || config.name.len() > 25 {
            return out_of_range(
                "length of name",
                config.name.len() as u64,
                "1 to 25 bytes are allowed",
            );
        }
        if config.count == 0 {
            return out_of_range("count", 0, "at least 1 mbuf is needed");
        }
        let max_room = u32::from(u16::MAX) - sys::RTE_PKTMBUF_HEADROOM;
        if config.data_room > max_room {
            return out_of_range("data_room", config.data_room.into(), "65407 bytes at most");
        }
        // rte_mempool_create: the cache, filled to one and a half, must not exceed the pool.
        if config.cache > sys::RTE_MEMPOOL_CACHE_MAX_SIZE
            || u64::from(config.cache) * 3 > u64::from(config.count) * 2
        {
            return out_of_range(
                "cache",
                config.cache.into(),
                "512 and two thirds of count at most",
            );
        }
        let name = CString::new(config.name.as_str()).map_err(|_| PortError::Nul {
            what: "mempool name",
            value: config.name.escape_debug().to_string(),
        })?;
        let room = config.data_room + sys::RTE_PKTMBUF_HEADROOM;
        let socket = config.socket.map_or(sys::SOCKET_ID_ANY, |s| s as i32);
        // SAFETY: EAL is initialised; the name is copied.
        let raw = unsafe {
            sys::rte_pktmbuf_pool_create(
                name.as_ptr(),
                config.count,
                config.cache,
                0,
                room as u16,
                socket,
            )
        };
        match NonNull::new(raw) {
            Some(raw) => Ok(Arc::new(Mempool {
                raw,
                config: config.clone(),
                exhausted: AtomicU64::new(0),
                eal: eal.clone(),
            })),
            None => Err(PortError::Mempool {
                name: config.name.clone(),
                count: config.count,
                data_room: config.data_room,
                total_mb: (u64::from(config.count) * u64::from(room + 192)).div_ceil(1 << 20),
                reason: strerror(last_errno()),
            }),
        }
    }

    /// An empty frame, or `None` (counted) when the pool is exhausted.
    #[inline]
    pub fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool is valid.
        match NonNull::new(unsafe { sys::rl_mbuf_alloc(self.raw.as_ptr()) }) {
            // SAFETY: fresh from the pool, owned by nobody else.
            Some(raw) => Some(unsafe { Mbuf::from_raw(raw) }),
            None => {
                self.count_exhaustion();
                None
            }
        }
    }

    /// Adds `count` empty frames to `burst`, or none (counted) if the pool or the burst has not that many.
    #[inline]
    pub fn alloc_bulk(&self, burst: &mut Burst, count: usize) -> bool {
        if count > burst.room() {
            return false;
        }
        // SAFETY: the pool is valid; `spare` has room for `count` pointers, all written on success.
        unsafe {
            if sys::rl_mbuf_alloc_bulk(self.raw.as_ptr(), burst.spare(), count as u32) == 0 {
                burst.grow(count);
                return true;
            }
        }
        self.count_exhaustion();
        false
    }

    #[cold]
    fn count_exhaustion(&self) {
        self.exhausted.fetch_add(1, Ordering::Relaxed);
    }

    /// How often an allocation of ours found too few mbufs. What drivers found is in their ports' counters
    /// (`mbuf_alloc_failed`).
    pub fn exhausted(&self) -> u64 {
        self.exhausted.load(Ordering::Relaxed)
    }

    /// Mbufs that are neither in use nor in a driver's ring. Slow: for statistics only.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool is valid.
        unsafe { sys::rte_mempool_avail_count(self.raw.as_ptr()) }
    }

    /// What it was made as.
    pub fn config(&self) -> &MempoolConfig {
        &self.config
    }

    /// The EAL whose memory it is made of.
    pub fn eal(&self) -> &Eal {
        &self.eal
    }

    /// For rx queues.
    pub(super) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.raw.as_ptr()
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        let in_use = self.config.count.saturating_sub(self.available());
        if in_use == 0 {
            // SAFETY: every mbuf is back, so nothing points into the pool, and nobody can allocate any more.
            unsafe { sys::rte_mempool_free(self.raw.as_ptr()) }
        } else {
            tracing::debug!(pool = %self.config.name, in_use, "mempool kept: mbufs of it are in use");
            self.eal.keep_memory();
        }
    }
}
