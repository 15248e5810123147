//! Connections: no more at a time than there is room for, and none that is waited for without end.

use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;

/// How many are open at a time; others wait to be accepted. The bodies of all of them may lie in memory at once.
const MOST: usize = 128;
/// How long the head of a request may take, and how long nothing may be asked.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before the next is accepted where one could not be: the system has no more handles.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers whoever connects until `ending`, then waits for what was begun.
///
/// # Errors
/// If the listener cannot be listened on.
pub async fn answer(
    listener: TcpListener,
    routes: Router,
    ending: impl Future<Output = ()>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (room, begun) = (Arc::new(Semaphore::new(MOST)), GracefulShutdown::new());
    let mut ending = pin!(ending);
    loop {
        let next = async {
            let place = room.clone().acquire_owned().await.expect("it is never closed");
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = &mut ending => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes.clone()));
        let connection = begun.watch(connection);
        tokio::spawn(async move {
            _ = connection.await; // who breaks off is told nothing
            drop(place);
        });
    }
    drop(listener);
    begun.shutdown().await;
    Ok(())
}
