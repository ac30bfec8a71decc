"""What makes the engines of a rung, a module a chapter: `nanoinfer.chapters` names them."""
