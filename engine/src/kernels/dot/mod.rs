//! Dot products in `f32`, for numerics that do not reproduce the summation order of a reference implementation.
//!
//! The summation order is fixed, so that every machine, number of tokens and split of the work gives the same bits.
//! Columns are taken in blocks of [`BLOCK`]. In a block, column k is added to lane k % 16 with one rounding per
//! multiply-add; lanes are added by halves (8, 4, 2, 1 apart), and blocks in order. Rows are padded with zeros to whole
//! lanes. No sum has a chain of more than 64 terms, so long rows have small rounding errors.
//!
//! `portable` defines the bits. The other modules use special instructions and give the same bits.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// Number of independent sums of a dot product: one register of AVX-512, two of AVX2, four of NEON.
pub(crate) const LANES: usize = 16;

/// Number of steps of [`LANES`] columns that are summed separately. Four rows and four tokens of so many steps fit in a
/// first-level cache.
pub(crate) const STEPS: usize = 64;

/// Number of columns that are summed separately.
pub const BLOCK: usize = STEPS * LANES;

/// Number of rows on each side of a tile.
pub(crate) const SIDE: usize = 4;

/// [`LANES`] columns of [`SIDE`] rows. They are aligned so that no register load crosses a cache line, which would
/// take twice as long.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct LaneColumns(pub [[f32; LANES]; SIDE]);

/// Maximum number of weight rows that are multiplied together.
pub const PANEL: usize = 128;

/// Products of a panel's rows with each of four rows of activations.
pub(crate) type PanelSums = [[[f32; SIDE]; PANEL / SIDE]; SIDE];

/// Code that computes dot products.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Required instructions.
    pub name: &'static str,
    /// Computes `Σ a[k] · b[k]` over at most one block.
    pub(crate) block: fn(a: &[f32], b: &[f32]) -> f32,
    /// Multiplies groups of four weight rows with four rows of activations. Groups are `len` steps apart; the number of
    /// multiplied steps is that of the activations.
    pub(crate) tiles:
        fn(weights: &[LaneColumns], len: usize, activations: &[LaneColumns], sums: &mut PanelSums),
}

impl Kernel {
    /// Returns the fastest kernel of this machine.
    pub(crate) fn fastest() -> Self {
        Self::all().next().unwrap_or(portable::KERNEL)
    }

    /// Returns all kernels of this machine, fastest first. The last one is the portable code.
    pub fn all() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let fast = x86_64::kernels();
        #[cfg(target_arch = "aarch64")]
        let fast = aarch64::kernels();
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let fast = None.into_iter();
        fast.chain([portable::KERNEL])
    }

    /// Computes `Σ a[k] · b[k]` over rows of any length.
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        let blocks = a.chunks(BLOCK).zip(b.chunks(BLOCK));
        blocks.fold(0.0, |sum, (a, b)| sum + (self.block)(a, b))
    }
}

/// Returns the values after the last full set of lanes, padded with zeros.
#[inline]
fn filled_up(rest: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}
