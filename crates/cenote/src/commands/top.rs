//! `cenote top`: hosts, volumes and key-value nodes as they change, in the terminal.
//!
//! One thread asks the hosts, one the owners of volumes, one the nodes, one reads keys; each sends what it has
//! to the main thread, which alone draws. A host or an owner that does not answer holds up its
//! own kind for `--timeout`, and never the keys.

mod frame;
mod nodes;
mod rows;
mod screen;
mod table;
mod view;

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, Failure, chain};
use cenote_cli::signals;
use cenote_cli::span;
use cenote_cli::stdout;
use crossterm::event::{self, Event};

use self::screen::Screen;
use self::view::{After, Focus, View};
use crate::place::Which;
use crate::sample::{Hosts, Nodes, Sampler, Volumes};

/// `top` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote top --dir ~/.cenote/well
  cenote top --cluster /var/lib/cenote/cluster.toml --interval 5s
  cenote top --dir ~/.cenote/well --once

Keys: q quits; tab switches between hosts, volumes and key-value nodes; up and down select a row, whose
details are shown below; left and right select the sort column, and r reverses the order.

Rates, latencies and remaining times are those of the last interval. Latencies are the 99th percentile
of single-page requests. For a folder of cenote kv, its nodes are shown. EVICTED counts slabs that
clients returned at their host's request. Only volumes of this cluster folder are shown.")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Refresh interval
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = span::within("100ms", "1h"))]
    interval: Duration,
    /// Timeout for answers of a host or volume owner
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = span::within("1ms", "60s"))]
    timeout: Duration,
    /// Print one frame as text after one interval and exit; needs no terminal
    #[arg(long)]
    once: bool,
}

/// What the main thread is told.
enum News {
    Hosts(Hosts),
    Volumes(Volumes),
    Nodes(Nodes),
    Terminal(Event),
    Stop,
    /// Those of a table could not be asked.
    Unasked(Focus, anyhow::Error),
    /// A thread cannot go on.
    Failed(anyhow::Error),
}

pub fn run(args: &Args) -> Result<u8> {
    let sampler = Sampler::new(&args.which, args.timeout)?;
    if args.once {
        return once(&sampler, args.interval);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::new(
            "top needs a terminal",
            "use cenote status, or cenote top --once",
        )
        .into());
    }
    watch(sampler, args.interval)
}

fn once(sampler: &Sampler, interval: Duration) -> Result<u8> {
    let mut view = View::new(sampler.cluster(), tables(sampler));
    view.handle_volumes(sampler.volumes()?);
    view.handle_nodes(sampler.nodes()?);
    std::thread::sleep(interval);
    view.handle_hosts(sampler.hosts()?);
    match sampler.volumes() {
        Ok(volumes) => view.handle_volumes(volumes),
        Err(error) => view.handle_trouble(Focus::Volumes, chain(&error)),
    }
    match sampler.nodes() {
        Ok(nodes) => view.handle_nodes(nodes),
        Err(error) => view.handle_trouble(Focus::Nodes, chain(&error)),
    }
    let mut out = stdout::lock();
    for line in frame::whole(&view) {
        writeln!(out, "{}", line.text().trim_end())?;
    }
    Ok(DONE)
}

/// What there is to show.
fn tables(sampler: &Sampler) -> Vec<Focus> {
    let mut tables = Vec::new();
    if sampler.has_hosts() {
        tables.extend([Focus::Hosts, Focus::Volumes]);
    }
    if sampler.has_nodes() {
        tables.push(Focus::Nodes);
    }
    tables
}

fn watch(sampler: Sampler, interval: Duration) -> Result<u8> {
    let (news, told) = mpsc::channel();
    let at_stop = news.clone();
    // A closed channel means that the main thread is past caring.
    signals::on_stop_or_haste(
        move || drop(at_stop.send(News::Stop)),
        screen::give_back_in_haste,
    )?;
    let mut view = View::new(sampler.cluster(), tables(&sampler));
    let mut screen = Screen::enter()?;
    let sampler = Arc::new(sampler);
    start(&sampler, &news, interval, "top-hosts", |sampler| {
        let unasked = |error| News::Unasked(Focus::Hosts, error);
        sampler.hosts().map_or_else(unasked, News::Hosts)
    })?;
    start(&sampler, &news, interval, "top-volumes", |sampler| {
        let unasked = |error| News::Unasked(Focus::Volumes, error);
        sampler.volumes().map_or_else(unasked, News::Volumes)
    })?;
    if sampler.has_nodes() {
        start(&sampler, &news, interval, "top-nodes", |sampler| {
            let unasked = |error| News::Unasked(Focus::Nodes, error);
            sampler.nodes().map_or_else(unasked, News::Nodes)
        })?;
    }
    std::thread::Builder::new()
        .name("top-keys".to_owned())
        .spawn(move || read_keys(&news))
        .context("start the thread that reads keys")?;
    let ended = draw(&mut view, &mut screen, &told);
    screen.leave()?;
    ended?;
    Ok(DONE)
}

/// Starts a thread that asks again and again.
fn start(
    sampler: &Arc<Sampler>,
    news: &Sender<News>,
    interval: Duration,
    name: &str,
    mut ask: impl FnMut(&Sampler) -> News + Send + 'static,
) -> Result<()> {
    let (sampler, news) = (Arc::clone(sampler), news.clone());
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // Ends with the channel: nobody looks any more.
            while news.send(ask(&sampler)).is_ok() {
                std::thread::sleep(interval);
            }
        })
        .with_context(|| format!("start the thread {name}"))?;
    Ok(())
}

fn read_keys(news: &Sender<News>) {
    loop {
        let (told, is_last) = match event::read() {
            Ok(event) => (News::Terminal(event), false),
            Err(error) => (
                News::Failed(anyhow::Error::new(error).context("read the terminal")),
                true,
            ),
        };
        if news.send(told).is_err() || is_last {
            return;
        }
    }
}

fn draw(view: &mut View, screen: &mut Screen, told: &Receiver<News>) -> Result<()> {
    loop {
        let size = screen.size()?;
        screen.show(&frame::fitted(view, size))?;
        match told.recv().context("every thread of top has ended")? {
            News::Hosts(hosts) => view.handle_hosts(hosts),
            News::Volumes(volumes) => view.handle_volumes(volumes),
            News::Nodes(nodes) => view.handle_nodes(nodes),
            News::Terminal(Event::Key(key)) => {
                if view.handle_key(&key) == After::End {
                    return Ok(());
                }
            }
            // Another size is seen when the next frame is made.
            News::Terminal(_) => {}
            News::Stop => return Ok(()),
            // What was known before is worth a look all the same.
            News::Unasked(table, error) if view.knows(table) => {
                view.handle_trouble(table, chain(&error));
            }
            News::Unasked(_, error) | News::Failed(error) => return Err(error),
        }
    }
}
