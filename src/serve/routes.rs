//! Routes of the HTTP server.

use std::sync::Arc;

use axum::extract::{Extension, MatchedPath, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::unbounded_channel;

use crate::serve::App;
use crate::serve::error_response::ErrorResponse;
use crate::serve::fields::Fields;
use crate::serve::metrics::{ActiveRequest, CONTENT_TYPE};
use crate::serve::queue::SequenceRequest;
use crate::serve::reply::{CompletionKind, Reply, ResponsePart};
use crate::serve::request::{CompletionOptions, CompletionPrompt, CompletionRequest, conversation};
use crate::serve::stream::streamed;
use crate::tokenizer::Chat;

/// Result of a route's handler.
type RouteResult = Result<Response, ErrorResponse>;

pub(crate) fn routes(app: Arc<App>) -> Router {
    let refuse = |status, message: &'static str| move || async move { ErrorResponse::new(status, message) };
    let routes = "unknown route, expected /v1/completions, /v1/chat/completions, /v1/models, /tokenize, /detokenize, \
                  /tokenizer_info, /health or /metrics";
    Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/models", get(models))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/metrics", get(metrics))
        .fallback(refuse(StatusCode::NOT_FOUND, routes))
        .method_not_allowed_fallback(refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "this route does not support the HTTP method of the request",
        ))
        .layer(middleware::from_fn_with_state(app.clone(), counted))
        .with_state(app)
}

/// Counts a request until its response is complete.
async fn counted(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let in_flight = Arc::new(app.metrics.arrived(&route));
    request.extensions_mut().insert(in_flight.clone());
    let response = next.run(request).await;
    let is_stream =
        response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if !is_stream {
        in_flight.answered(response.status().as_u16());
    }
    response
}

/// Reads a body within the size limit and parses its fields. Also returns the permit for parsing.
async fn fields(app: &App, request: Request) -> Result<(Fields, OwnedSemaphorePermit), ErrorResponse> {
    let kind =
        request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.to_ascii_lowercase().starts_with("application/json") {
        let message = format!("the content type is '{kind}', expected application/json");
        return Err(ErrorResponse::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let body = app.bodies.read(request).await?;
    let place = app.looking.clone().acquire_owned().await.expect("the semaphore is never closed");
    let mut fields = Fields::parse(&body.bytes)?;
    drop(body);
    let model: Option<String> = fields.take("model", "a name")?;
    if let Some(model) = model.filter(|model| *model != app.served.name) {
        let message = format!("unknown model '{model}', this server serves '{}'", app.served.name);
        return Err(
            ErrorResponse::new(StatusCode::NOT_FOUND, message).about(Some("model"), Some("model_not_found"))
        );
    }
    Ok((fields, place))
}

async fn completions(
    State(app): State<Arc<App>>,
    Extension(in_flight): Extension<Arc<ActiveRequest>>,
    request: Request,
) -> RouteResult {
    let (fields, place) = fields(&app, request).await?;
    let asked = CompletionRequest::read(fields, app.served.limits.max_logprobs)?;
    let encoder = app.clone();
    let prompts = beside(move || {
        let encode = |prompt| match prompt {
            CompletionPrompt::Ids(ids) => Ok(ids),
            CompletionPrompt::Text(text) => encoder.served.encode(&text, asked.adds_special),
        };
        asked.prompts.into_iter().map(encode).collect::<Result<Vec<_>, _>>()
    });
    let prompts = prompts.await?;
    drop(place);
    answered(&app, CompletionKind::Completion, asked.ask, prompts, in_flight).await
}

async fn chat(
    State(app): State<Arc<App>>,
    Extension(in_flight): Extension<Arc<ActiveRequest>>,
    request: Request,
) -> RouteResult {
    let (fields, place) = fields(&app, request).await?;
    let (conversation, ask) = CompletionOptions::of_chat(fields, app.served.limits.max_logprobs)?;
    let encoder = app.clone();
    let prompt = beside(move || encoder.served.conversation(&conversation)).await?;
    drop(place);
    answered(&app, CompletionKind::Chat, ask, vec![prompt], in_flight).await
}

/// Queues the sequences and returns the response with their results.
async fn answered(
    app: &Arc<App>,
    kind: CompletionKind,
    ask: CompletionOptions,
    prompts: Vec<Vec<u32>>,
    in_flight: Arc<ActiveRequest>,
) -> RouteResult {
    let (listener, mut receiver) = unbounded_channel();
    let order = |(index, prompt): (usize, &Vec<u32>)| {
        let request = app.served.request(prompt, &ask)?;
        Ok(SequenceRequest {
            index,
            request,
            scores_prompt: ask.scores_prompt(),
            scores: ask.logprobs,
            echo: ask.echo,
            stops: ask.stops.clone(),
            listener: listener.clone(),
        })
    };
    let orders: Vec<SequenceRequest> =
        prompts.iter().enumerate().map(order).collect::<Result<_, ErrorResponse>>()?;
    drop(listener);
    app.queue.admit(orders)?;
    let count = prompts.len();
    let mut reply = Reply::new(app, kind, ask, prompts);
    if reply.ask.streams {
        return Ok(streamed(reply, receiver, count, in_flight));
    }
    let mut parts: Vec<ResponsePart> = (0..count).map(ResponsePart::of).collect();
    while let Some((index, event)) = receiver.recv().await {
        parts[index].add(event)?;
    }
    if !parts.iter().all(ResponsePart::has_ended) {
        return Err(ErrorResponse::failed("the computation ended without an answer; please report it"));
    }
    Ok(Json(reply.whole(&parts)).into_response())
}

async fn models(State(app): State<Arc<App>>) -> Response {
    let served = &app.served;
    let model = json!({
        "id": served.name,
        "object": "model",
        "created": app.created,
        "owned_by": "xcheck",
        "max_model_len": served.limits.context,
        "numerics": served.numerics.name(),
    });
    Json(json!({"object": "list", "data": [model]})).into_response()
}

async fn tokenize(State(app): State<Arc<App>>, request: Request) -> RouteResult {
    let (mut fields, _place) = fields(&app, request).await?;
    let pieces = fields.flag("return_token_strs")?;
    let encoder = app.clone();
    let ids = match fields.take::<String>("prompt", "a text")? {
        Some(text) => {
            let adds = fields.take("add_special_tokens", "true or false")?.unwrap_or(true);
            fields.finish()?;
            beside(move || encoder.served.encode(&text, adds)).await?
        }
        None => {
            let conversation = conversation(&mut fields)?;
            fields.finish()?;
            beside(move || encoder.served.conversation(&conversation)).await?
        }
    };
    let tokenizer = app.served.tokenizer()?;
    let strings = pieces.then(|| ids.iter().map(|&id| tokenizer.piece(id)).collect::<Vec<_>>());
    let (count, most) = (ids.len(), app.served.limits.context);
    Ok(Json(json!({"count": count, "max_model_len": most, "tokens": ids, "token_strs": strings}))
        .into_response())
}

async fn detokenize(State(app): State<Arc<App>>, request: Request) -> RouteResult {
    let (mut fields, _place) = fields(&app, request).await?;
    let expected = "a list of token ids";
    let Some(ids) = fields.take::<Vec<u32>>("tokens", expected)? else {
        return Err(ErrorResponse::invalid(
            Some("tokens"),
            format!("tokens is missing, expected {expected}"),
        ));
    };
    fields.finish()?;
    let text = beside(move || Ok(app.served.tokenizer()?.decode_lossy(&ids)?)).await?;
    Ok(Json(json!({"prompt": text})).into_response())
}

/// Serves the tokenizer settings that lm-evaluation-harness asks for, so that it needs no tokenizer of its own.
async fn tokenizer_info(State(app): State<Arc<App>>) -> RouteResult {
    app.served.tokenizer()?;
    let Chat { template, tokens } = &app.served.chat;
    let mut told = json!({"eos_token": null, "chat_template": template});
    for (name, text) in tokens {
        told[name] = json!(text);
    }
    Ok(Json(told).into_response())
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], app.metrics.text(app.queue.lengths())).into_response()
}

/// Runs work on a separate thread that would block the async threads for too long.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ErrorResponse> + Send + 'static,
) -> Result<T, ErrorResponse> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        Err(ErrorResponse::failed("the tokenizer panicked on this input; please report it"))
    })
}
