//! What is known and what is looked at: the state behind a frame, moved by samples and keys.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::nodes::{NODE_HEADER, node};
use super::rows::{HOST_HEADER, VOLUME_HEADER, host, volume};
use super::table::{Order, Row, sort};
use crate::sample::{Hosts, Nodes, Volumes};

/// One of the tables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Focus {
    /// Of hosts.
    Hosts,
    /// Of volumes.
    Volumes,
    /// Of key-value nodes.
    Nodes,
}

/// What is to happen after a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum After {
    /// Another frame.
    Go,
    /// Nothing more.
    End,
}

/// How a table is looked at.
#[derive(Clone, Debug)]
struct Sight {
    order: Order,
    /// Name of the chosen row, which stays chosen wherever it goes; the first row while `None`.
    chosen: Option<String>,
}

impl Sight {
    fn new() -> Self {
        let order = Order {
            column: 0,
            is_reversed: false,
        };
        Self {
            order,
            chosen: None,
        }
    }
}

/// When a table was told.
struct Told {
    at: Instant,
    trouble: Option<String>,
}

/// The state.
pub struct View {
    cluster: String,
    hosts: Option<Hosts>,
    volumes: Option<Volumes>,
    /// The sample before that, for rates.
    volumes_before: Option<Volumes>,
    nodes: Option<Nodes>,
    nodes_before: Option<Nodes>,
    /// Of each table, when it was told, and why it is not told again.
    told: Vec<(Focus, Told)>,
    /// What is shown, from the top.
    tables: Vec<Focus>,
    focus: Focus,
    host_sight: Sight,
    volume_sight: Sight,
    node_sight: Sight,
}

impl View {
    /// Of a cluster of which nothing is known yet.
    pub fn new(cluster: String, tables: Vec<Focus>) -> Self {
        Self {
            cluster,
            hosts: None,
            volumes: None,
            volumes_before: None,
            nodes: None,
            nodes_before: None,
            told: Vec::new(),
            focus: tables.first().copied().unwrap_or(Focus::Hosts),
            tables,
            host_sight: Sight::new(),
            volume_sight: Sight::new(),
            node_sight: Sight::new(),
        }
    }

    /// Hosts were asked.
    pub fn handle_hosts(&mut self, hosts: Hosts) {
        self.hosts = Some(hosts);
        self.note_told(Focus::Hosts);
    }

    /// Volumes were asked.
    pub fn handle_volumes(&mut self, volumes: Volumes) {
        self.volumes_before = self.volumes.replace(volumes);
        self.note_told(Focus::Volumes);
    }

    /// Key-value nodes were asked.
    pub fn handle_nodes(&mut self, nodes: Nodes) {
        self.nodes_before = self.nodes.replace(nodes);
        self.note_told(Focus::Nodes);
    }

    /// Those of a table could not be asked: what was known of them stays.
    pub fn handle_trouble(&mut self, table: Focus, why: String) {
        if let Some((_, told)) = self.told.iter_mut().find(|(of, _)| *of == table) {
            told.trouble = Some(why);
        }
    }

    fn note_told(&mut self, table: Focus) {
        self.told.retain(|(of, _)| *of != table);
        let at = Instant::now();
        self.told.push((table, Told { at, trouble: None }));
    }

    /// How old is what is known of a table that cannot be asked, and why it cannot.
    pub fn trouble(&self, table: Focus) -> Option<String> {
        let (_, told) = self.told.iter().find(|(of, _)| *of == table)?;
        let why = told.trouble.as_ref()?;
        let age_s = told.at.elapsed().as_secs();
        Some(format!("stale, {age_s} s old: {why}"))
    }

    /// A key was pressed.
    pub fn handle_key(&mut self, key: &KeyEvent) -> After {
        if key.kind == KeyEventKind::Release {
            return After::Go;
        }
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if with_control => return After::End,
            KeyCode::Char('q') | KeyCode::Esc => return After::End,
            KeyCode::Tab => self.turn_to(1),
            KeyCode::BackTab => self.turn_to(self.tables.len().saturating_sub(1)),
            KeyCode::Up | KeyCode::Char('k') => self.choose(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(|at, last| (at + 1).min(last)),
            KeyCode::Home => self.choose(|_, _| 0),
            KeyCode::End => self.choose(|_, last| last),
            KeyCode::Right | KeyCode::Char('l') => {
                self.order_by(|column, last| (column + 1).min(last))
            }
            KeyCode::Left | KeyCode::Char('h') => {
                self.order_by(|column, _| column.saturating_sub(1))
            }
            KeyCode::Char('r') => {
                let order = &mut self.sight_mut().order;
                order.is_reversed = !order.is_reversed;
            }
            _ => {}
        }
        After::Go
    }

    /// Goes on by so many tables.
    fn turn_to(&mut self, step: usize) {
        let at = self.tables.iter().position(|table| *table == self.focus);
        let next = (at.unwrap_or(0) + step) % self.tables.len().max(1);
        self.focus = self.tables.get(next).copied().unwrap_or(self.focus);
    }

    fn sight_mut(&mut self) -> &mut Sight {
        match self.focus {
            Focus::Hosts => &mut self.host_sight,
            Focus::Volumes => &mut self.volume_sight,
            Focus::Nodes => &mut self.node_sight,
        }
    }

    fn sight(&self, table: Focus) -> &Sight {
        match table {
            Focus::Hosts => &self.host_sight,
            Focus::Volumes => &self.volume_sight,
            Focus::Nodes => &self.node_sight,
        }
    }

    /// Moves from one row to another: their places, and that of the last one.
    fn choose(&mut self, step: impl FnOnce(usize, usize) -> usize) {
        let rows = self.rows(self.focus);
        let Some(last) = rows.len().checked_sub(1) else {
            return;
        };
        let at = self.chosen_in(self.focus, &rows).unwrap_or(0);
        self.sight_mut().chosen = Some(rows[step(at, last)].name.clone());
    }

    fn order_by(&mut self, step: impl FnOnce(usize, usize) -> usize) {
        let last = self.header(self.focus).len() - 1;
        let order = &mut self.sight_mut().order;
        order.column = step(order.column, last);
    }

    /// Which cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Hosts, as last asked; `None` before that.
    pub fn hosts(&self) -> Option<&Hosts> {
        self.hosts.as_ref()
    }

    /// Whether those of a table were asked.
    pub fn knows(&self, table: Focus) -> bool {
        match table {
            Focus::Hosts => self.hosts.is_some(),
            Focus::Volumes => self.volumes.is_some(),
            Focus::Nodes => self.nodes.is_some(),
        }
    }

    /// What is shown, from the top.
    pub fn tables(&self) -> &[Focus] {
        &self.tables
    }

    /// Which table keys go to.
    pub fn focus(&self) -> Focus {
        self.focus
    }

    /// What a table is in order of.
    pub fn order(&self, table: Focus) -> Order {
        self.sight(table).order
    }

    /// Names of a table's columns.
    pub fn header(&self, table: Focus) -> &'static [&'static str] {
        match table {
            Focus::Hosts => &HOST_HEADER,
            Focus::Volumes => &VOLUME_HEADER,
            Focus::Nodes => &NODE_HEADER,
        }
    }

    /// A table's rows, in order.
    pub fn rows(&self, table: Focus) -> Vec<Row> {
        let mut rows: Vec<Row> = match table {
            Focus::Hosts => self.hosts.iter().flatten().map(host).collect(),
            Focus::Volumes => {
                let now = self.volumes.iter();
                now.flat_map(|now| {
                    let before = self.volumes_before.as_ref();
                    now.volumes
                        .iter()
                        .map(move |each| volume(each, now, before))
                })
                .collect()
            }
            Focus::Nodes => {
                let before = self.nodes_before.as_ref();
                let now = self.nodes.iter();
                now.flat_map(|now| now.nodes.iter().map(move |each| node(each, now, before)))
                    .collect()
            }
        };
        sort(&mut rows, self.order(table));
        rows
    }

    /// Which of a table's rows is chosen; none of an empty one.
    pub fn chosen_in(&self, table: Focus, rows: &[Row]) -> Option<usize> {
        let chosen = self.sight(table).chosen.as_ref();
        let at = chosen.and_then(|name| rows.iter().position(|row| row.name == *name));
        // A row that is gone leaves its place to the first.
        at.or((!rows.is_empty()).then_some(0))
    }
}
