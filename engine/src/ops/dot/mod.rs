//! Dot products in `f32` where no reference's order of sums is reproduced.
//!
//! The order is a definition of its own, so that every machine, every number of tokens and every way of cutting the work
//! gives the same bits: columns are taken in blocks of [`BLOCK`]; in a block, column k is added to lane k % 16 with one
//! rounding per multiply-add; lanes are added by halves (8, 4, 2, 1 apart), and blocks in their order. What a row lacks to
//! whole lanes counts as zeros. No sum has a chain of more than 64 terms, so that long rows round little.
//!
//! `plain` is the definition; what needs instructions of its own is a twin that gives the same bits.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// Independent sums of a dot product: one register of AVX-512, two of AVX2, four of NEON.
pub const LANES: usize = 16;

/// Steps of [`LANES`] columns that are added up by themselves: four rows and four tokens of so many stay in a first cache.
pub const STEPS: usize = 64;

/// Columns that are added up by themselves.
pub const BLOCK: usize = STEPS * LANES;

/// Rows of one side of a tile.
pub const SIDE: usize = 4;

/// [`LANES`] columns of [`SIDE`] rows. No register is filled from two lines of a cache, which takes twice as long.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct LaneColumns(pub [[f32; LANES]; SIDE]);

/// Rows of weights that are multiplied together at most.
pub const PANEL: usize = 128;

/// Products of a panel's rows with each of four rows of activations.
pub type PanelSums = [[[f32; SIDE]; PANEL / SIDE]; SIDE];

/// The code that computes dot products.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Required instructions.
    pub name: &'static str,
    /// `Σ a[k] · b[k]` over one block at most.
    pub block: fn(a: &[f32], b: &[f32]) -> f32,
    /// Multiplies groups of four rows, each `len` steps after the previous one, with four rows of activations: of
    /// each group as many steps as the activations have.
    pub tiles: fn(weights: &[LaneColumns], len: usize, activations: &[LaneColumns], sums: &mut PanelSums),
}

impl Kernel {
    /// The fastest that this machine has.
    pub fn fastest() -> Self {
        Self::all().next().unwrap_or(portable::KERNEL)
    }

    /// Returns all kernels of this machine, the fastest first; the last is the definition.
    pub fn all() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let fast = x86_64::kernels();
        #[cfg(target_arch = "aarch64")]
        let fast = aarch64::kernels();
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let fast = None.into_iter();
        fast.chain([portable::KERNEL])
    }

    /// `Σ a[k] · b[k]` over rows of any length.
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        let blocks = a.chunks(BLOCK).zip(b.chunks(BLOCK));
        blocks.fold(0.0, |sum, (a, b)| sum + (self.block)(a, b))
    }
}

/// Returns the values after the last whole lanes, padded with zeros.
#[inline]
fn filled_up(rest: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}
