//! Device memory: how many bytes a call is charged ([`charging`]), which member holds how much ([`ledger`]), pools that
//! grow and shrink ([`pool`]), and the figures a tenant sees ([`view`]).

pub mod charging;
pub mod ledger;
pub mod pool;
pub mod view;
