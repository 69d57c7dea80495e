//! The numbers behind the kernels: powers of x modulo the CRC-32 polynomial, made by the compiler.
//!
//! Everything is bit-reflected, as the Ethernet CRC sends the low bit of a byte first: in a word of n bits, bit i
//! is the coefficient of x^(n-1-i), and in a block of 16 bytes read as a little-endian `u128` bit i is that of x^(127-i).
//! Multiplying two reflected 64-bit words without carries gives a 128-bit block that is their product times x; the
//! exponents below are one less for it.

/// x^32 + x^26 + … + 1 without its x^32, reflected.
pub const POLY: u32 = 0xedb8_8320;

/// x^n modulo the polynomial, reflected: bit 31 is x^0.
pub const fn power(n: usize) -> u32 {
    let (mut value, mut square, mut rest) = (1 << 31, 1 << 30, n);
    while rest > 0 {
        if rest & 1 == 1 {
            value = product(value, square);
        }
        square = product(square, square);
        rest >>= 1;
    }
    value
}

/// The product of two remainders, modulo the polynomial.
pub const fn product(a: u32, b: u32) -> u32 {
    let (mut sum, mut times, mut i) = (0, a, 0);
    while i < 32 {
        sum ^= times & (b >> (31 - i) & 1).wrapping_neg();
        times = times_x(times);
        i += 1;
    }
    sum
}

/// Times x, modulo the polynomial.
pub const fn times_x(value: u32) -> u32 {
    (value >> 1) ^ (POLY & (value & 1).wrapping_neg())
}

/// The four bytes after which a register that was 0 is `register`: division by x^32 modulo the polynomial.
pub const fn prefix_of(register: u32) -> u32 {
    let mut value = register;
    let mut i = 0;
    while i < 32 {
        // POLY has bit 31, and a shifted value has not: the bit tells whether POLY was added.
        let added = value >> 31;
        value = ((value ^ (POLY & added.wrapping_neg())) << 1) | added;
        i += 1;
    }
    value
}

/// What the low and the high half of a block are multiplied with to move the block `bytes` bytes ahead: x^(64+d) and
/// x^d for d bits, each less one. In 64-bit words, whose bit 63 is x^0.
pub const fn keys(bytes: usize) -> [u64; 2] {
    let bits = 8 * bytes;
    [
        (power(63 + bits) as u64) << 32,
        (power(bits - 1) as u64) << 32,
    ]
}

/// Brings the low half of a block to the high one while the whole is multiplied by x^32: x^96, less one, at
/// bit 31 and below, so that the result begins at bit 0.
pub const REDUCE: u64 = power(95) as u64;

/// The quotient of x^96 and the polynomial has 65 bits; this is all but that of x^0, which does not reach the quotient of
/// a block (Barrett reduction with a quotient of 64 bits).
pub const BARRETT: u64 = {
    let polynomial: u128 = 1 << 32 | POLY.reverse_bits() as u128;
    let mut rest: u128 = 1 << 96;
    let mut quotient: u128 = 0;
    let mut i = 65;
    while i > 0 {
        i -= 1;
        if rest >> (32 + i) & 1 == 1 {
            quotient |= 1 << i;
            rest ^= polynomial << i;
        }
    }
    ((quotient >> 1) as u64).reverse_bits()
};

/// The polynomial, all 33 bits, with x^32 at bit 0.
pub const WHOLE: u64 = (POLY as u64) << 1 | 1;

/// Tables for eight bytes at once: `TABLES[k][b]` is the register after byte b and k bytes of zeros.
pub static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut i = 0;
        while i < 8 {
            value = times_x(value);
            i += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers() {
        assert_eq!((power(0), power(31), power(32)), (1 << 31, 1, POLY));
        assert_eq!(WHOLE, 0x1_db71_0641);
        assert_eq!(power(1000), (0..1000).fold(1 << 31, |v, _| times_x(v)));
        // x^31 of a register of ones goes ahead by four bytes of zeros and comes back
        let ahead = (0..32).fold(0xdead_beef, |v, _| times_x(v));
        assert_eq!(prefix_of(ahead), 0xdead_beef);
    }

    #[test]
    fn tables_go_bit_by_bit() {
        for byte in 0..=255 {
            for (k, table) in TABLES.iter().enumerate() {
                let want = (0..8 * (k + 1)).fold(byte, |v, _| times_x(v));
                assert_eq!(table[byte as usize], want);
            }
        }
    }
}
