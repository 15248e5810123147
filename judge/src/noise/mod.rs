//! Noise floors: the effect of rounding over several operations, measured with perturbed runs.

mod excess;
mod logprob_noise;
mod noise_floor;
mod perturbed_runs;
mod rounding_choices;

pub(crate) use excess::{Excess, PerturbedErrors};
pub use noise_floor::NoiseFloor;

pub(crate) use noise_floor::RunNoiseFloors;
pub(crate) use perturbed_runs::{
    ExtraRoundings, NoiseMeasurement, UnstatedRoundings, extra_roundings, floors,
};
pub(crate) use rounding_choices::RowNoise;
