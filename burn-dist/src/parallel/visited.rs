//! Keeps the path of a visitor or mapper in a module.

/// Keeps the names on the way to the visited tensor in the field `path`. With `and`, it also keeps
/// the type of the container of the last field in `container`.
macro_rules! keeps_path {
    ($(and $container:ident)?) => {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            $(_container_type.clone_into(&mut self.$container);)?
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }
    };
}
pub(super) use keeps_path;
