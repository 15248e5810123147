//! Self-test of the judge. Every change of the catalogue is injected into a model, the resulting dump is
//! judged, and the detected site and cause are counted. Correct dumps that were computed, cut, stored or
//! written in different ways must not fail.
//!
//! Nothing is written: dumps are in memory.

mod correct_dump;
mod counts;
mod expected_figures;
mod fault_injection;
mod memory_dump;
mod sensitivity;
mod test_model;

pub use correct_dump::{CorrectDump, OTHER_KERNELS, TWINS, other_kernels};
pub use counts::{CorrectCounts, FaultCounts, SelfTestJob, SelfTestResult as Judged, SelfTestTable};
pub use expected_figures::{ExpectedFigures, FigureRegression};
pub use fault_injection::{FaultDetection, InjectedFault, kinds, plants_of, told};
pub use memory_dump::{DumpForm, MemoryDump, RecordedTaps};
pub use sensitivity::{Fault, Sensitivity, sensitivities};
pub use test_model::{ARITHMETICS, ChangeEffect, MODELS, PROMPT, TestModel};
