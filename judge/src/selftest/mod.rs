//! Self-test of the judge. Every change in the catalogue is injected into a model, and the resulting dump is
//! judged. The self-test counts how often the correct site and cause are found. Correct dumps that were
//! computed, cut, stored or written in different ways must not fail.
//!
//! All dumps are kept in memory; no file is written.

mod correct_dump;
mod counts;
mod expected_figures;
mod fault_injection;
mod fault_sample;
mod memory_dump;
mod sensitivity;
mod test_model;

pub use correct_dump::{CorrectDump, OTHER_KERNELS, TWINS, fused_kernels, other_kernels};
pub use counts::{
    CorrectCounts, FaultCounts, FaultRow, SelfTestJob, SelfTestResult as Judged, SelfTestTable,
};
pub use expected_figures::{ExpectedFigures, FigureRegression};
pub use fault_injection::{FaultDetection, InjectedFault, plants_of, told};
pub use fault_sample::{every_fault, kinds, sampled_faults};
pub use memory_dump::{DumpForm, RecordedTaps};
pub use sensitivity::{Fault, Sensitivity, sensitivities};
pub use test_model::{ARITHMETICS, ChangeEffect, MODELS, PROMPT, TestModel};
