//! Plans: division of a comparison into units that many machines can judge independently. Only headers are
//! read.

mod cost;
mod crossing;
mod message_stations;
mod shard;
mod shard_environment;
mod unit;

pub use cost::{Cost, Limit};
pub(crate) use crossing::Crossing;
pub(crate) use message_stations::{MessageStations, units_of};
pub use shard::{Shard, shards};
pub use shard_environment::from_environment;
pub(crate) use unit::input_of;
pub use unit::{Unit, units, unread};

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::align::Selection;
use crate::dump::Dump;
use crate::model::Model;
use crate::weight::DType;

/// All units of a comparison in data-flow order, with their costs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// SHA-256 of everything the plan depends on: the model's sizes and types, the dump's manifest, the
    /// units.
    pub hash: String,
    /// Units of the plan, in data-flow order.
    pub units: Vec<Unit>,
    /// Cost of each unit.
    pub costs: Vec<Cost>,
}

/// The data that identifies a plan. It only includes headers, so every machine gets the same plan.
#[derive(Serialize)]
struct PlanIdentity<'p> {
    xcheck: &'static str,
    architecture: &'static str,
    matrices: Vec<(String, &'static str, usize, usize)>,
    manifest: &'p crate::dump::Manifest,
    units: &'p [Unit],
}

impl Plan {
    /// Makes the plan for a model, a dump and the computed type.
    pub fn of(model: &dyn Model, dump: &Dump, computed: DType, selection: &Selection) -> Self {
        let units = unit::units(model, dump, computed, selection);
        let costs = units.iter().map(|unit| Cost::of(unit, model, dump)).collect();
        let matrices = model.matrices().into_iter();
        let told = PlanIdentity {
            xcheck: env!("CARGO_PKG_VERSION"),
            architecture: model.architecture(),
            matrices: matrices.map(|(name, w)| (name, w.dtype.name(), w.rows, w.cols)).collect(),
            manifest: &dump.manifest,
            units: &units,
        };
        let json = serde_json::to_vec(&told).expect("a plan is plain data");
        Self { hash: hex::encode(Sha256::digest(json)), units, costs }
    }
}
