//! Writes what an inference engine computes as a dump, which xcheck judges.
//!
//! ```
//! use xcheck_dump::{Dump, Meta, RopePairing, Values};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("run.safetensors");
//! # let (n, heads, head_dim, q, logits) = (2, 2, 4, [0.5f32; 16], [0.1f32, 0.9, 0.2]);
//! let meta = Meta { rope_pairing: Some(RopePairing::Half), ..Meta::new("my-engine", "llama") };
//! let mut dump = Dump::create(&path, meta)?;
//! dump.pass(&[1, 403])?;
//! dump.tap("q", Some(0), &[n, heads, head_dim], Values::F32(&q))?;
//! dump.tap("last_logits", None, &[3], Values::F32(&logits))?;
//! dump.generated(&[1])?;
//! dump.finish()?;
//! # assert!(path.is_file());
//! # Ok(()) }
//! ```
//!
//! The dump is one file where the path ends with `.safetensors`, else a folder of `.npy` files. What comes goes to the disk at
//! once, under names with `.part` beside the path; [`Dump::finish`] gives it its name, and without that nothing is left.
//!
//! What cannot be right is refused when it comes: a tap that there is none of (with the nearest name), a layer that is missing or too
//! much, an axis of tokens that is not the pass's, a place twice. After an error the dump takes nothing more, and `finish`
//! returns that error too: what an engine has overlooked never becomes a dump.
//!
//! Version 2 of the contract is written where something needs it: several sequences ([`Meta::sequences`], [`Dump::pass_of`]), some
//! rows and types that were shorter before ([`Options`]), fused projections ([`Dump::fused`]).

#![deny(missing_docs)]

mod axes;
mod container;
mod dump;
mod error;
mod likelihoods;
mod manifest;
mod meta;
mod passes;
mod taps;
mod value;
mod values;

pub use axes::Axis;
pub use dump::Dump;
pub use error::{Error, Result};
pub use meta::{Decode, Meta, RopePairing, Sequence};
pub use passes::{Place, Row};
pub use taps::{Scope, Tap, TAPS};
pub use value::{Options, Part};
pub use values::Values;

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
