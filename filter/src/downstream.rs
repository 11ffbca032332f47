//! One request as Envoy knows it. What it is lies where the root context finds it, too.

use crate::group::Waiter;
use crate::host;
use crate::request::Request;
use crate::vm::Host;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use std::cell::{RefCell, RefMut};
use std::rc::{Rc, Weak};

/// One request's context.
pub struct Downstream(Rc<RefCell<Request>>);

impl Downstream {
    /// A request whose head is not read yet.
    pub fn new(host: Rc<Host>, context_id: u32) -> Self {
        Self(Rc::new_cyclic(|request| RefCell::new(Request::new(host, Waiter { context_id, request: Weak::clone(request) }))))
    }
}

impl Downstream {
    /// The request, in a callback that begins.
    fn request(&self) -> RefMut<'_, Request> {
        host::awake();
        self.0.borrow_mut()
    }
}

impl Context for Downstream {
    fn on_http_call_response(&mut self, token: u32, num_headers: usize, body_size: usize, _num_trailers: usize) {
        self.request().landed(token, num_headers, body_size);
    }
}

impl HttpContext for Downstream {
    fn on_http_request_headers(&mut self, _num_headers: usize, end_of_stream: bool) -> Action {
        self.request().request_head(end_of_stream)
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.request().request_piece(size, end_of_stream)
    }

    fn on_http_request_trailers(&mut self, _num_trailers: usize) -> Action {
        self.request().request_trailers()
    }

    fn on_http_response_headers(&mut self, _num_headers: usize, end_of_stream: bool) -> Action {
        self.request().response_head(end_of_stream)
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.request().response_piece(size, end_of_stream)
    }

    fn on_log(&mut self) {
        self.request().ended();
    }
}
