//! Detection of the server's protocol.

use std::sync::OnceLock;

use clap::ValueEnum;
use serde_json::Value;

use crate::probe::answer::{MissingAnswer, ServerAnswer};
use crate::probe::client::Client;
use crate::probe::server::ServerApi;
use crate::probe::{llama_server, ollama, openai, sglang, tgi, vllm};

/// Protocol of a server. The descriptions of the values are also the help texts of `--server`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServerProtocol {
    /// llama-server of llama.cpp.
    LlamaServer,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Text Generation Inference.
    Tgi,
    /// Ollama.
    Ollama,
    /// Any other server with the OpenAI API, e.g. llama-cpp-python or mistral.rs.
    Openai,
}

impl ServerProtocol {
    /// All kinds, in the order of detection.
    pub(crate) const ALL: [Self; 6] =
        [Self::LlamaServer, Self::Sglang, Self::Tgi, Self::Ollama, Self::Vllm, Self::Openai];

    /// Returns the name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            ServerProtocol::LlamaServer => "llama-server",
            ServerProtocol::Vllm => "vllm",
            ServerProtocol::Sglang => "sglang",
            ServerProtocol::Tgi => "tgi",
            ServerProtocol::Ollama => "ollama",
            ServerProtocol::Openai => "openai",
        }
    }

    /// Returns the path by which the protocol is recognised, and a JSON pointer that exists only in its response.
    fn sign(self) -> (&'static str, &'static str) {
        match self {
            ServerProtocol::LlamaServer => ("/props", "/default_generation_settings"),
            ServerProtocol::Vllm => ("/version", "/version"),
            ServerProtocol::Sglang => ("/get_model_info", "/model_path"),
            ServerProtocol::Tgi => ("/info", "/model_id"),
            ServerProtocol::Ollama => ("/api/version", "/version"),
            ServerProtocol::Openai => ("/v1/models", "/data"),
        }
    }
}

/// Identity of a server.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    pub(crate) kind: ServerProtocol,
    /// Version, if the server reports one.
    pub(crate) version: String,
    /// Name of the model on the server.
    pub(crate) model: String,
    /// Computed type, as stated by the server.
    pub(crate) dtype: Option<String>,
}

/// Detects the protocol, unless it is given, and the served model.
///
/// # Errors
/// If the server does not answer, is unknown, or serves several models and none is named.
pub fn identify(
    client: &Client,
    told: Option<ServerProtocol>,
    model: Option<&str>,
) -> ServerAnswer<ServerIdentity> {
    let candidates = told.map_or(ServerProtocol::ALL.to_vec(), |kind| vec![kind]);
    let mut tried = Vec::new();
    let says = |refusal: &MissingAnswer, start: &str| {
        refusal.problem().is_some_and(|problem| problem.starts_with(start))
    };
    for kind in candidates {
        let (path, sign) = kind.sign();
        match client.get(path) {
            Ok(found) if found.pointer(sign).is_some() => return identity(client, kind, &found, model),
            // If the protocol is given, this path need not exist.
            Ok(_) | Err(MissingAnswer::Cannot(_)) if told.is_some() => {
                return identity(client, kind, &Value::Null, model);
            }
            // It may also fail, if its response is not needed.
            Err(refusal) if told.is_some() && model.is_some() && says(&refusal, "HTTP 500") => {
                return identity(client, kind, &Value::Null, model);
            }
            Ok(_) | Err(MissingAnswer::Cannot(_)) => tried.push(path),
            // An HTML page or an error page: the server does not have this path.
            Err(refusal) if told.is_none() && says(&refusal, "the answer is not JSON") => tried.push(path),
            Err(broken) => return Err(broken),
        }
    }
    Err(client.broken(
        "",
        format!(
            "no known server answers at this address (tried: {}); name its kind with --server KIND",
            tried.join(", ")
        ),
    ))
}

fn identity(
    client: &Client,
    kind: ServerProtocol,
    found: &Value,
    model: Option<&str>,
) -> ServerAnswer<ServerIdentity> {
    let word = |pointer: &str| found.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let own = match kind {
        ServerProtocol::LlamaServer => {
            word("/model_alias").filter(|alias| !alias.is_empty()).or_else(|| word("/model_path"))
        }
        ServerProtocol::Sglang => word("/served_model_name").or_else(|| word("/model_path")),
        ServerProtocol::Tgi => word("/model_id"),
        ServerProtocol::Vllm | ServerProtocol::Ollama | ServerProtocol::Openai => None,
    };
    let model = match (model, own) {
        (Some(named), _) => named.to_owned(),
        (None, Some(own)) => own,
        (None, None) => only_model(client, found)?,
    };
    let version = match kind {
        ServerProtocol::LlamaServer => word("/build_info"),
        _ => word("/version"),
    };
    let dtype = word("/model_dtype").or_else(|| word("/dtype")).filter(|dtype| dtype != "auto");
    Ok(ServerIdentity { kind, version: version.unwrap_or_default(), model, dtype })
}

/// Returns the only model that a server lists.
fn only_model(client: &Client, found: &Value) -> ServerAnswer<String> {
    let listed = match found.pointer("/data") {
        Some(_) => found.clone(),
        None => client.get("/v1/models")?,
    };
    let ids = listed.pointer("/data").and_then(Value::as_array).into_iter().flatten();
    let ids: Vec<&str> = ids.filter_map(|model| model["id"].as_str()).collect();
    match ids.as_slice() {
        [only] => Ok((*only).to_owned()),
        [] => Err(client.broken("/v1/models", "lists no model; name it with --served-model")),
        several => Err(client
            .broken("/v1/models", format!("serves {}; choose one with --served-model", several.join(", ")))),
    }
}

/// Returns the interface for the server's protocol.
pub(crate) fn speak<'c>(client: &'c Client, known: &ServerIdentity) -> Box<dyn ServerApi + 'c> {
    let model = known.model.clone();
    match known.kind {
        ServerProtocol::LlamaServer => Box::new(llama_server::LlamaServer { client }),
        ServerProtocol::Vllm => Box::new(vllm::Vllm { client, model }),
        ServerProtocol::Sglang => Box::new(sglang::Sglang { client, model }),
        ServerProtocol::Tgi => Box::new(tgi::Tgi { client }),
        ServerProtocol::Ollama => Box::new(ollama::Ollama { client, model }),
        ServerProtocol::Openai => Box::new(openai::Openai { client, model, talks: OnceLock::new() }),
    }
}
