//! Does what judges others find what it should? Every change of the catalogue is planted in a model, the dump that such an
//! engine would leave is judged, and it is counted what was found, where, and by what name; and what is right but computed, cut,
//! stored or written otherwise is judged, too, and must not fail.
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
