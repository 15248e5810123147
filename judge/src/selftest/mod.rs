//! Self-test of the judge. Every change of the catalogue is injected into a model, the resulting dump is
//! judged, and the detected site and cause are counted. Correct dumps that were computed, cut, stored or
//! written in different ways must not fail.
//!
//! Nothing is written: dumps are in memory.

mod bed;
mod count;
mod memory;
mod plants;
mod promise;
mod sensitivity;
mod twins;

pub use bed::{ARITHMETICS, Bed, MODELS, Made, PROMPT};
pub use count::{Count, Found, Job, Result as Judged, Table};
pub use memory::{Form, Memory, Thinned};
pub use plants::{Plant, Told, kinds, plants_of, told};
pub use promise::{Broken, Promise};
pub use sensitivity::{Fault, Sensitivity, sensitivities};
pub use twins::{OTHER_KERNELS, TWINS, Twin, other_kernels};
