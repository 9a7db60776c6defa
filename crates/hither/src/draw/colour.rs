//! The colour scale of heatmaps: viridis, whose lightness grows evenly, so that people with
//! colour-blindness, and paper without colours, show the order of values.

/// Colours of a scale.
pub const LEVELS: usize = 32;

/// Viridis at eleven equal steps (S. van der Walt and N. Smith, matplotlib; public domain).
const VIRIDIS: [[u8; 3]; 11] = [
    [0x44, 0x01, 0x54],
    [0x48, 0x25, 0x76],
    [0x41, 0x44, 0x87],
    [0x35, 0x60, 0x8D],
    [0x2A, 0x78, 0x8E],
    [0x21, 0x90, 0x8C],
    [0x22, 0xA8, 0x84],
    [0x43, 0xBF, 0x71],
    [0x7A, 0xD1, 0x51],
    [0xBB, 0xDF, 0x27],
    [0xFD, 0xE7, 0x25],
];

/// Colours like them, as evenly light, of a terminal's 256.
pub const TERMINAL: [u8; 10] = [53, 54, 24, 30, 36, 71, 77, 113, 149, 226];

/// Red, green and blue of a level below [`LEVELS`].
pub fn rgb(level: usize) -> [u8; 3] {
    let place = level.min(LEVELS - 1) as f64 / (LEVELS - 1) as f64 * (VIRIDIS.len() - 1) as f64;
    let below = (place as usize).min(VIRIDIS.len() - 2);
    let share = place - below as f64;
    let mix = |index: usize| {
        let (low, high) = (VIRIDIS[below][index], VIRIDIS[below + 1][index]);
        (f64::from(low) + (f64::from(high) - f64::from(low)) * share).round() as u8
    };
    [mix(0), mix(1), mix(2)]
}

/// The same as SVG writes it.
pub fn hex(level: usize) -> String {
    let [red, green, blue] = rgb(level);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The same on a terminal.
pub fn terminal(level: usize) -> u8 {
    TERMINAL[level.min(LEVELS - 1) * TERMINAL.len() / LEVELS]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_lighter() {
        let lightness = |[red, green, blue]: [u8; 3]| {
            0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue)
        };
        let all: Vec<f64> = (0..LEVELS).map(|level| lightness(rgb(level))).collect();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
        assert_eq!(
            (hex(0), hex(LEVELS - 1), hex(99)),
            ("#440154".into(), "#fde725".into(), hex(31))
        );
        // Red, green and blue of a code of the cube.
        let cube = |code: u8| {
            let steps = [0, 95, 135, 175, 215, 255];
            let code = usize::from(code) - 16;
            [code / 36, code / 6 % 6, code % 6].map(|index| steps[index])
        };
        let steps: Vec<f64> = TERMINAL.iter().map(|&code| lightness(cube(code))).collect();
        assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "{steps:?}");
        assert_eq!([0, 31, 99].map(terminal), [53, 226, 226]);
    }
}
