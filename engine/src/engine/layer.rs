//! Computation of one layer from given inputs.

use crate::engine::{check_context, check_types};
use crate::error::{Error, Result};
use crate::model::{Dimensions, LayerState, Model};
use crate::numerics::Numerics;
use crate::tap::Probe;
use crate::tensor::Tensor;

/// Runs a layer over `x`, `[T, d]`, at the next position of its state, and returns the layer's output, `[T, d]`. Adds
/// the tokens to the state.
///
/// # Errors
/// If the numerics cannot compute with a weight's type, the layer does not exist, hidden states or state have the wrong
/// size, or the tokens exceed the model's context.
pub fn run_layer(
    model: &dyn Model,
    numerics: &dyn Numerics,
    layer: usize,
    x: &Tensor,
    state: &mut LayerState,
    t: &mut Probe,
) -> Result<Tensor> {
    check_types(model, numerics)?;
    let position = check_inputs(model, layer, x, state)?;
    Ok(model.pass(numerics, position..position + x.rows()).layer(layer, x, t, state))
}

/// Returns an error for a model whose layers read more than a residual stream, because a part of it cannot run
/// alone.
pub(super) fn check_parts(model: &dyn Model) -> Result<()> {
    match model.runs_in_parts() {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "layers of {} also read tokens or earlier layers' keys and cannot run alone: run the whole model",
            model.architecture()
        ))),
    }
}

/// Checks the inputs and returns the position of the first token.
fn check_inputs(model: &dyn Model, layer: usize, x: &Tensor, state: &LayerState) -> Result<usize> {
    let sizes = model.dimensions();
    let Dimensions { n_layers, hidden_size, .. } = sizes;
    let refuse = |problem: String| Err(Error::Usage(problem));
    if layer >= n_layers {
        return refuse(format!("no layer {layer}: the model has {n_layers} layers, counted from 0"));
    }
    if !matches!(x.shape(), &[tokens, width] if tokens > 0 && width == hidden_size) {
        return refuse(format!(
            "the hidden states have shape {:?}, expected [tokens, {hidden_size}] for layer {layer}",
            x.shape()
        ));
    }
    check_parts(model)?;
    let (own, [kv_width, value_width]) = (model.layer_state(layer), model.cache_widths(layer));
    let Some(position) = state.position(&own, [kv_width, value_width]) else {
        return refuse(match own {
            LayerState::Kv(_) => {
                format!(
                    "the state does not fit layer {layer}: expected a KV cache with {kv_width} key values and \
                     {value_width} values for each token"
                )
            }
            LayerState::Both(..) => format!(
                "the state does not fit layer {layer}: expected the KV cache and the recurrent state of this layer"
            ),
            LayerState::Recurrent(_) => {
                format!("the state does not fit layer {layer}: expected the recurrent state of this layer")
            }
        });
    };
    check_context(position + x.rows(), sizes)?;
    Ok(position)
}
