//! What figures have in common.

use plotters::style::{FontStyle, register_font};

/// Where distributions keep a font with a free licence.
const FONTS: [&str; 3] = [
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
    "/usr/share/fonts/dejavu-sans-fonts/DejaVuSans.ttf",
    "/usr/share/fonts/TTF/DejaVuSans.ttf",
];

/// Has figures written in a font of this machine, by the name `sans-serif`.
pub fn take_font() -> Result<(), String> {
    let font = FONTS.iter().find_map(|font| std::fs::read(font).ok());
    let font = font.ok_or("no font to draw with (Debian: apt-get install fonts-dejavu-core)")?;
    let font = Box::leak(font.into_boxed_slice());
    register_font("sans-serif", FontStyle::Normal, font).map_err(|_| "the font is broken".into())
}
