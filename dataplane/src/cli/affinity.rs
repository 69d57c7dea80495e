//! Keeps the calling process, and so the program it is about to become, off the CPUs on which lcores poll.

use std::mem;

use crate::config::allowed_cpus;

/// Removes `polling` from the CPUs of the calling thread, unless none would be left. It is a favour to both sides,
/// so whatever stands in the way is not an error.
pub(super) fn keep_off(polling: &[usize]) {
    let allowed = allowed_cpus();
    let rest = without(&allowed, polling);
    if rest.is_empty() || rest.len() == allowed.len() {
        return;
    }
    // SAFETY: cpu_set_t is a plain bit mask for which all zero is the empty set; CPU_SET checks the index
    // against its size; sched_setaffinity reads the mask, whose size it is told. 0 is the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        for cpu in rest {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &set);
    }
}

fn without(allowed: &[usize], polling: &[usize]) -> Vec<usize> {
    allowed
        .iter()
        .copied()
        .filter(|cpu| !polling.contains(cpu))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_cpus_are_left_out() {
        assert_eq!(without(&[0, 1, 2], &[2]), [0, 1]);
        assert_eq!(without(&[0, 1], &[]), [0, 1]);
        assert_eq!(without(&[1], &[1]), [0; 0]);
    }
}
