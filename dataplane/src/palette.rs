//! Colours of figures.

/// Okabe and Ito's, which the colour-blind tell apart, and a grey for one more.
pub const COLORS: [(u8, u8, u8); 8] = [
    (213, 94, 0),
    (0, 114, 178),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (0, 0, 0),
    (120, 120, 120),
];
