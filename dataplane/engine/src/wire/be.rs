//! Big-endian fields at fixed offsets of fixed-size headers. With the offsets constant and the
//! functions inlined, the compiler sees that no access can be out of range.

#[inline(always)]
pub(super) fn u16_at<const N: usize>(b: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

#[inline(always)]
pub(super) fn u24_at<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}

#[inline(always)]
pub(super) fn u32_at<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline(always)]
pub(super) fn u64_at<const N: usize>(b: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(b, at)) << 32 | u64::from(u32_at(b, at + 4))
}

#[inline(always)]
pub(super) const fn put_u16<const N: usize>(b: &mut [u8; N], at: usize, v: u16) {
    [b[at], b[at + 1]] = v.to_be_bytes();
}

#[inline(always)]
pub(super) fn put_u24<const N: usize>(b: &mut [u8; N], at: usize, v: u32) {
    b[at..at + 3].copy_from_slice(&v.to_be_bytes()[1..]);
}

#[inline(always)]
pub(super) fn put_u32<const N: usize>(b: &mut [u8; N], at: usize, v: u32) {
    b[at..at + 4].copy_from_slice(&v.to_be_bytes());
}

#[inline(always)]
pub(super) fn put_u64<const N: usize>(b: &mut [u8; N], at: usize, v: u64) {
    b[at..at + 8].copy_from_slice(&v.to_be_bytes());
}
