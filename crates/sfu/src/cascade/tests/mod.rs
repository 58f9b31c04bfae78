mod link;
mod walk;
mod world;
